package e2e_test

import (
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// TestSecretsAreNowhere uses each kind of secret, well and badly, changes the secret key under the server, and then looks for
// them in whatever the server has written or says.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	first, second := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("1", 32))), base64.StdEncoding.EncodeToString([]byte(strings.Repeat("2", 32)))
	const modelKey, header, password = "sk-model-key-of-a-business", "bearer-of-a-tool", "hunter2-in-a-url"
	s := start(t, "PARLEY_SECRET_KEY="+first, "PARLEY_DELIVERY_RETRIES=0")
	r := receive(t, func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	id, secret := s.register(r.URL, "run.finished")
	rotated := at(s.query(token, `mutation($id: ID!) { rotateWebhookSecret(id: $id) { secret } }`, object{"id": id}), "rotateWebhookSecret", "secret").(string)
	if answer := s.graphql(withToken(token), `mutation($in: AgentInput!) { createAgent(input: $in) { id } }`, object{"in": object{
		"name": "a", "model": object{"provider": "OPENAI", "apiKey": modelKey, "baseUrl": "https://192.0.2.1"},
		"tools": []any{object{"name": "t", "description": "d", "parameters": object{}, "url": "https://192.0.2.1", "headers": object{"Authorization": header}}},
	}}); strings.Contains(encode(answer), modelKey) || strings.Contains(encode(answer), header) {
		t.Errorf("a refusal repeats a secret: %v", answer)
	}
	agent := at(s.query(token, `mutation($in: AgentInput!) { createAgent(input: $in) { id model { hasApiKey } tools { headerNames } } }`, object{"in": object{
		"name": "a", "model": object{"provider": "OPENAI", "apiKey": modelKey, "baseUrl": "https://model.invalid"},
		"tools": []any{object{"name": "t", "description": "d", "parameters": object{}, "url": "https://tool.invalid", "headers": object{"Authorization": header}}},
	}}), "createAgent", "id").(string)
	said := []string{}
	say := func(v any) { said = append(said, encode(v)) }
	_, _, refused := s.call("POST", "/v1/webhooks", withToken(token), encode(object{"url": "https://u:" + password + "@example.com", "events": []string{"run.failed"}}))
	say(refused)
	_, _, failed := s.call("POST", "/agents/"+agent+"/chat", withKey(apiKey), `{"message":"Hello","channel":"sms"}`)
	say(failed)
	s.chat("Hello", "")
	r.wait()

	// The key is changed: with the old one beside it, then alone. What was sealed with the old one still signs.
	for _, env := range [][]string{{"PARLEY_SECRET_KEY=" + second, "PARLEY_SECRET_KEY_OLD=" + first}, {"PARLEY_SECRET_KEY=" + second, "PARLEY_SECRET_KEY_OLD="}} {
		if code := s.stop(); code != 0 {
			t.Fatalf("it ended with %d:\n%s", code, s.log())
		}
		s.env = append(s.env, env...)
		s.up()
		s.chat("Hello again", "")
		h := r.wait()
		for _, signing := range []string{secret, rotated} {
			oracle, err := standardwebhooks.NewWebhook(signing)
			if err != nil || oracle.Verify(h.body, h.header) != nil {
				t.Errorf("after the change of the key a secret does not sign: %v", err)
			}
		}
	}
	say(s.query(token, `{ webhookEndpoints { id url deliveries { nodes { attempts { error responseBody } } } }
		agents { nodes { name model { hasApiKey baseUrl } tools { name headerNames } webhookEndpoint { id } } } }`, nil))
	_, _, list := s.call("GET", "/v1/webhooks", withToken(token), "")
	say(list)
	_, _, metrics, err := s.try(t.Context(), "GET", "/metrics", nil, "")
	if err != nil {
		t.Fatal(err)
	}
	said = append(said, string(metrics), s.log(), s.stdout())
	if code := s.stop(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	for _, file := range []string{"parley.db", "parley.db-wal"} {
		raw, err := os.ReadFile(filepath.Join(s.dir, file))
		if err == nil {
			said = append(said, string(raw))
		}
	}
	bare := func(s string) string { return strings.TrimPrefix(s, "whsec_") }
	for name, hidden := range map[string]string{
		"a signing secret": bare(secret), "a rotated one": bare(rotated), "a model's key": modelKey, "a tool's header": header, "a password in a URL": password,
		"the secret key": second, "the old one": first, "the API key": apiKey[8:], "the token": token[8:],
	} {
		for i, text := range said {
			if j := strings.Index(text, hidden); j >= 0 {
				t.Errorf("%s stands in %d: …%.80q", name, i, text[max(0, j-40):])
			}
		}
	}
}
