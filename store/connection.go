package store

// The connections of the schema (Relay), one pair of types a list.

// AgentEdge is an agent with its cursor.
type AgentEdge = Edge[*Agent]

// AgentConnection is a page of agents.
type AgentConnection struct {
	Edges    []AgentEdge
	PageInfo PageInfo
}

// Nodes are the agents of the page.
func (c *AgentConnection) Nodes() []*Agent { return nodes(c.Edges) }

// EventEdge is an event with its cursor, at which the feed goes on after it.
type EventEdge = Edge[*Event]

// EventConnection is a page of a feed.
type EventConnection struct {
	Edges    []EventEdge
	PageInfo PageInfo
}

// Nodes are the events of the page.
func (c *EventConnection) Nodes() []*Event { return nodes(c.Edges) }

// RunConnection is a page of runs.
type RunConnection struct {
	Edges    []RunEdge
	PageInfo PageInfo
}

// Nodes are the runs.
func (c *RunConnection) Nodes() []*Run { return nodes(c.Edges) }

// RunEdge is a run with its cursor.
type RunEdge = Edge[*Run]
