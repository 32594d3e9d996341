package main

import (
	"slices"
	"strings"
	"testing"
)

func TestMisspelt(t *testing.T) {
	t.Parallel()
	settings := []string{"PARLEY_ADDR", "PARLEY_DATABASE_URL", "PARLEY_DELIVERY_RETRIES", "PARLEY_DELIVERY_TIMEOUT", "PARLEY_SECRET_KEY", "PARLEY_SECRET_KEY_OLD"}
	for variable, nearest := range map[string]string{
		"PARLEY_ADRR=x":               "PARLEY_ADDR",
		"PARLEY_PORT=8080":            "PARLEY_ADDR",
		"PARLEY_DATABASEURL=":         "PARLEY_DATABASE_URL",
		"PARLEY_DELIVERY_RETRY=3":     "PARLEY_DELIVERY_RETRIES",
		"PARLEY_DELIVERY_TIME_OUT=3":  "PARLEY_DELIVERY_TIMEOUT",
		"PARLEY_SECRETKEY=hidden":     "PARLEY_SECRET_KEY",
		"PARLEY_SECRET_KEYOLD=hidden": "PARLEY_SECRET_KEY_OLD",
		"PARLEY_addr=x":               "PARLEY_ADDR",
		"PARLEY_ADDR=127.0.0.1:1":     "",
		"PARLEY_SECRET_KEY=a=b":       "",
		"PARLEYS=x":                   "",
		"parley_addr=x":               "", // of some other program
		// Of OpenAI's own tools, which have more settings than we know of.
		"OPENAI_BASE=x":                  "",
		"PARLEY_SERVICE_HOST=10.0.0.1":   "", // Kubernetes, of a Service parley
		"PARLEY_SERVICE_PORT=8080":       "",
		"PARLEY_SERVICE_PORT_HTTP=8080":  "",
		"PARLEY_PORT=tcp://10.0.0.1:80":  "",
		"PARLEY_PORT_80_TCP=tcp://10:80": "",
		"PARLEY_PORT_80_TCP_ADDR=10.0.0": "",
		"PARLEY_REDIS_SERVICE_HOST=10.0": "", // and of a Service parley-redis
		"PARLEY_REDIS_PORT=tcp://10:637": "",
	} {
		var want []string
		if nearest != "" {
			name, _, _ := strings.Cut(variable, "=")
			want = []string{name + " is no setting, " + nearest + " is"}
		}
		if got := misspelt([]string{"HOME=/", variable}, settings); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", variable, got, want)
		}
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"same", "same", 0}} {
		if got := edits(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d edits, want %d", c.a, c.b, got, c.want)
		}
	}
}
