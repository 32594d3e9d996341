package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// chatProgram is what a caller writes on the types that are made of /openapi.json: no cast is
// needed.
const chatProgram = `
	import createClient from "openapi-fetch";
	import type { paths } from "./api.js";

	declare const process: { argv: string[] };
	const [, , baseUrl, key] = process.argv;
	const client = createClient<paths>({ baseUrl, headers: { "X-API-Key": key } });

	async function say(message: string, session?: string) {
		const { data, error } = await client.POST("/agents/{agent_id}/chat", {
			params: { path: { agent_id: "demo" }, header: { "Idempotency-Key": message } },
			body: { message, channel: "whatsapp", session_id: session, metadata: { shop: 1 } },
		});
		if (error) throw new Error(typeof error.detail === "string" ? error.detail : error.detail.map((f) => f.msg).join());
		const { reply, status, usage } = data;
		console.log(status, reply.length > 0, usage.total_tokens + 0);
		return data.session_id;
	}
	await say("And how do I return something?", await say("When are you open on Saturday?"));
	const refused = await client.POST("/agents/{agent_id}/chat", { params: { path: { agent_id: "nobody" } }, body: { message: "Hello", channel: "sms" } });
	if (refused.error && "code" in refused.error) console.log(refused.error.code.toUpperCase());
	const tried = await client.POST("/agents/{agent_id}/test", { params: { path: { agent_id: "demo" } }, body: { message: "Hello", channel: "sms", tools: {} } });
	console.log(tried.data?.simulated, tried.data?.steps.flatMap((s) => s.tool_calls.map((c) => c.name)).length);
`

// TestOpenAPI holds the document that the server serves against Redocly's recommended rules, and
// writes a chat program on the types that are made of it, which it runs.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "package.json"), `{"private":true,"type":"module","dependencies":{
		"@redocly/cli":"2.77.0","openapi-fetch":"0.17.0","openapi-typescript":"7.13.0","typescript":"5.9.3"}}`)
	needs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts")
	s := start(t)
	_, _, document, err := s.try(t.Context(), "GET", "/openapi.json", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "openapi.json"), string(document))
	put(t, filepath.Join(dir, "chat.ts"), chatProgram)
	put(t, filepath.Join(dir, "tsconfig.json"), `{"compilerOptions":{"strict":true,"noUncheckedIndexedAccess":false,"target":"es2022","lib":["es2022","dom"],
		"module":"nodenext","types":[]},"files":["chat.ts"]}`)
	node := func(command ...string) (string, error) {
		run := exec.CommandContext(t.Context(), "npx", append([]string{"--no-install"}, command...)...)
		run.Dir, run.Env = dir, append(os.Environ(), "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true", "NO_COLOR=1")
		out, err := run.Output()
		return string(out), err
	}
	if out, err := node("redocly", "lint", "--extends=recommended", "--format=json", "openapi.json"); err != nil || !strings.Contains(out, `"problems": []`) {
		t.Errorf("the document has faults: %v\n%s", err, out)
	}
	for _, command := range [][]string{{"openapi-typescript", "openapi.json", "-o", "api.d.ts"}, {"tsc", "--noEmit"}, {"tsc"}} {
		if out, err := node(command...); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	run := exec.CommandContext(t.Context(), "node", "chat.js", s.url(), apiKey)
	run.Dir = dir
	out, err := run.CombinedOutput()
	if want := "finished true 0\nfinished true 0\nAGENT_NOT_FOUND\ntrue 0\n"; err != nil || string(out) != want {
		t.Errorf("the program said %s, %v", out, err)
	}
}
