-- The MCP servers whose tools an agent may use, as JSON.

ALTER TABLE agents ADD COLUMN mcp_servers TEXT NOT NULL DEFAULT '[]';
