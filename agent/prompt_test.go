package agent_test

import (
	"testing"

	"parley/agent"
)

// TestCheckPrompt refuses what no chat could ever fill in: a chat has metadata, but no lead.
func TestCheckPrompt(t *testing.T) {
	t.Parallel()
	const names = ": use metadata.…, agent.name, channel, lead.name, lead.email or lead.number"
	for prompt, want := range map[string]string{
		"{{ metadata.a.b }} {{metadata.a|}} {{agent.name}} {{channel}}": "",
		"{{lead.name | you}}, {{lead.email|}}":                          "",
		"Hello {{ lead.name }}":                                         "Value error, a chat has no lead: give lead.name a default, as in {{lead.name | our guest}}",
		"{{nobody | x}}":                                                `Value error, there is no variable "nobody"` + names,
		"{{metadata.}}":                                                 `Value error, there is no variable "metadata."` + names,
	} {
		faults, got := agent.CheckPrompt(prompt), ""
		for _, f := range faults {
			got += f.Msg
		}
		if got != want {
			t.Errorf("%s: %q, want %q", prompt, got, want)
		}
	}
}
