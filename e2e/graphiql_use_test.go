package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// press presses a key, with what it does by itself.
func (b *browser) press(key string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", object{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code})
	}
}

// graphiql opens the page with a token.
func (s *server) graphiql(t *testing.T, token string) *browser {
	t.Helper()
	b := browse(t)
	b.call("Page.navigate", object{"url": s.url() + "/graphiql#" + token})
	b.shows(".graphiql-query-editor", "viewer")
	return b
}

// TestGraphiQLEvents: a subscription's result keeps all that came, the newest first.
func TestGraphiQLEvents(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := s.graphiql(t, token)
	// GraphiQL copies what its first tab holds into whichever is open a moment later, and stores it
	// then.
	eventually(t, "settled", func() bool {
		return b.eval("localStorage['graphiql:query'] ?? localStorage['graphiql:tabState']") != nil
	})
	b.click(".graphiql-tab button", "Events")
	b.shows(".graphiql-query-editor", "subscription Events")
	b.click(".graphiql-execute-button", "")
	// Nothing tells when the server has taken the subscription.
	eventually(t, "showing an event", func() bool {
		s.chat("Hello", "")
		return b.showing(".result-window", `"received"`)
	})
	for range 4 {
		s.chat("Hello", "")
	}
	nodes := at(s.query(token, `{ events(last: 12) { edges { cursor node { type } } } }`, nil), "events", "edges").([]any)
	var shown object
	eventually(t, "showing the last event", func() bool {
		text, _ := b.eval(`document.querySelector('.result-window .CodeMirror').CodeMirror.getValue()`).(string)
		return json.Unmarshal([]byte(text), &shown) == nil && at(shown, "newestFirst", 0, "events", "cursor") == at(nodes, 11, "cursor")
	})
	if all := shown["newestFirst"].([]any); len(all) < 12 || float64(len(all)) != shown["received"] {
		t.Fatalf("it shows %d of %v", len(all), shown["received"])
	}
	for i := range 12 {
		if got := at(shown, "newestFirst", i, "events"); at(got, "cursor") != at(nodes, 11-i, "cursor") || at(got, "node", "type") != at(nodes, 11-i, "node", "type") {
			t.Errorf("event %d is %v, and not %v", i, got, nodes[11-i])
		}
	}
}

// TestGraphiQLSecrets: an API key in the place of a token is told apart from a token that opens
// nothing.
func TestGraphiQLSecrets(t *testing.T) {
	t.Parallel()
	s := start(t)
	b := s.graphiql(t, apiKey)
	b.shows(".result-window", "is an API key")
	b.click(".graphiql-execute-button", "")
	b.shows(".result-window", "is an API key")
	for headers, says := range map[string]string{
		`{"Authorization": "Bearer at_mistyped"}`:             "it is mistyped, or was revoked",
		fmt.Sprintf(`{"authorization": "Bearer %s"}`, apiKey): "is an API key",
		// The events are not for keys.
		fmt.Sprintf(`{"X-API-Key": "%s"}`, apiKey):                "FORBIDDEN",
		fmt.Sprintf(`{"authorization": "Bearer %s"}`, token):      `"ADMIN"`,
		fmt.Sprintf(`{"Authorization": "Bearer %s \u2026"}`, "x"): "Put an access token",
	} {
		eventually(t, "showing the headers", func() bool {
			b.click(`[aria-label="Headers"] .CodeMirror-line`, "{")
			b.fill(headers)
			return b.eval(`document.querySelector('[aria-label="Headers"] .graphiql-editor:not(.hidden) .CodeMirror').CodeMirror.getValue()`) == headers
		})
		b.click(".graphiql-execute-button", "")
		b.shows(".result-window", says)
	}
}

// TestGraphiQLForEverybody: axe finds nothing serious in the page, in light and dark, wide and as
// narrow as a telephone; it can be left by keyboard, and used at 390 pixels.
func TestGraphiQLForEverybody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "package.json"), `{"private":true,"dependencies":{"axe-core":"4.14.1"}}`)
	needs(t, dir, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--ignore-scripts")
	axe, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	b := start(t).graphiql(t, token)
	b.eval(string(axe) + "; 0")
	b.click(".graphiql-execute-button", "")
	b.shows(".result-window", `"ADMIN"`)
	check := func(state string) {
		t.Helper()
		raw, _ := b.eval(`axe.run().then((r) => JSON.stringify(r.violations.filter((v) => ["serious", "critical"].includes(v.impact))
			.map((v) => v.id + ": " + v.nodes.map((n) => n.target + " " + n.any.map((a) => a.message).join()).join("; "))))`).(string)
		var faults []string
		if err := json.Unmarshal([]byte(raw), &faults); err != nil {
			t.Fatal(err)
		}
		for _, f := range faults {
			t.Errorf("%s: %s", state, f)
		}
	}
	size := func(width, height int) {
		b.call("Emulation.setDeviceMetricsOverride", object{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false})
	}
	for _, theme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", object{"features": []object{{"name": "prefers-color-scheme", "value": theme}}})
		size(1280, 900)
		check(theme)
		b.click("button", "Show Documentation Explorer")
		b.shows(".graphiql-doc-explorer", "Subscription")
		check(theme + ", with the documentation")
		b.click("button", "Hide Documentation Explorer")
		size(390, 844)
		check(theme + ", narrow")
		b.click("button", "Show Documentation Explorer")
		b.shows(".graphiql-doc-explorer", "Subscription")
		check(theme + ", narrow, with the documentation")
		b.click("button", "Hide Documentation Explorer")
		b.click("button", "Open settings dialog")
		b.shows(".graphiql-dialog", "Theme")
		check(theme + ", narrow, with the settings")
		b.press("Escape", 27)
		eventually(t, "closing the settings", func() bool { return b.eval("document.querySelector('.graphiql-dialog') === null") == true })
	}

	t.Run("by keyboard", func(t *testing.T) {
		size(1280, 900)
		inside := func() bool {
			in, _ := b.eval(`document.querySelector('.graphiql-query-editor .CodeMirror').contains(document.activeElement)`).(bool)
			return in
		}
		b.click(".graphiql-query-editor .CodeMirror-line", "viewer")
		eventually(t, "in the editor", inside)
		b.press("Tab", 9)
		if !inside() {
			t.Error("Tab does not indent")
		}
		b.press("Escape", 27)
		b.press("Tab", 9)
		if inside() {
			t.Error("Esc, then Tab does not leave the editor")
		}
	})
	t.Run("at 390 pixels", func(t *testing.T) {
		size(390, 844)
		// What is asked for, what runs it and what came are seen at once, and nothing has to be
		// scrolled sideways.
		for selector, least := range map[string][2]float64{
			".graphiql-query-editor": {250, 120}, ".graphiql-execute-button": {24, 24}, ".result-window": {250, 120}, `[aria-label="Headers"]`: {250, 50},
		} {
			quoted, _ := json.Marshal(selector)
			box := b.eval(`(() => {
				const e = document.querySelector(` + string(quoted) + `);
				const { left, top, right, bottom, width, height } = e.getBoundingClientRect();
				const on = document.elementFromPoint(left + width / 2, top + height / 2);
				return [left, top, right, bottom, width, height, e.contains(on) ? 1 : 0];
			})()`)
			n := func(i int) float64 { f, _ := at(box, i).(float64); return f }
			if n(0) < 0 || n(1) < 0 || n(2) > 390 || n(3) > 844 || n(4) < least[0] || n(5) < least[1] || n(6) == 0 {
				t.Errorf("%s is at %v", selector, box)
			}
		}
		if wide := b.eval("document.documentElement.scrollWidth"); wide != 390.0 {
			t.Errorf("the page is %v wide", wide)
		}
		b.click(".graphiql-tab button", "Chat")
		b.shows(".graphiql-query-editor", "mutation Chat")
		b.click(".graphiql-execute-button", "")
		b.shows(".result-window", "sessionId")
	})
	if faults := strings.Join(b.faults, "\n"); faults != "" {
		t.Errorf("the browser says: %s", faults)
	}
}
