package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"parley/e2e/servers"
)

// browser is a real Chromium with one page, driven by the Chrome DevTools Protocol. It notes whatever a page must not do.
type browser struct {
	t       *testing.T
	conn    *websocket.Conn
	session string
	answers map[int]chan object

	mu       sync.Mutex // guards what follows, and writing
	calls    int
	requests []string // URLs
	frames   []string // sent on WebSockets
	faults   []string // errors and warnings of the console, exceptions, what the content security policy blocked
}

// browse starts a browser with an empty page.
func browse(t *testing.T) *browser {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(servers.Need(t, "chromium"), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--window-size=1280,900",
		"--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var port, path string
	eventually(t, "listening for DevTools", func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		var ok bool
		port, path, ok = strings.Cut(strings.TrimSpace(string(raw)), "\n")
		return err == nil && ok
	})
	conn, _, err := websocket.DefaultDialer.Dial("ws://127.0.0.1:"+port+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{t: t, conn: conn, answers: map[int]chan object{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read()
	}()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the page shows:\n%v\nafter %.200q", b.eval("document.body.innerText"), b.requests)
		}
		b.call("Browser.close", nil) // so that nobody writes to dir any more
		<-read
		_ = cmd.Wait()
	})
	target := at(b.call("Target.createTarget", object{"url": "about:blank"}), "targetId")
	b.session, _ = at(b.call("Target.attachToTarget", object{"targetId": target, "flatten": true}), "sessionId").(string)
	for _, domain := range []string{"Page", "Network", "Log", "Runtime", "Audits"} {
		b.call(domain+".enable", nil)
	}
	return b
}

func (b *browser) read() {
	for {
		var m object
		if err := b.conn.ReadJSON(&m); err != nil {
			return
		}
		b.mu.Lock()
		if id, ok := m["id"].(float64); ok {
			b.answers[int(id)] <- m
			b.mu.Unlock()
			continue
		}
		switch params := m["params"]; m["method"] {
		case "Network.requestWillBeSent":
			b.requests = append(b.requests, at(params, "request", "url").(string))
		case "Network.webSocketCreated":
			b.requests = append(b.requests, at(params, "url").(string))
		case "Network.webSocketFrameSent":
			frame, _ := at(params, "response", "payloadData").(string)
			b.frames = append(b.frames, frame)
		case "Runtime.exceptionThrown":
			b.faults = append(b.faults, encode(params))
		case "Audits.issueAdded": // of a form without names, too
			if at(params, "issue", "code") == "ContentSecurityPolicyIssue" {
				b.faults = append(b.faults, encode(params))
			}
		case "Log.entryAdded":
			if level := at(params, "entry", "level"); level == "error" || level == "warning" {
				b.faults = append(b.faults, encode(params))
			}
		case "Runtime.consoleAPICalled":
			if kind := at(params, "type"); kind == "error" || kind == "warning" || kind == "assert" {
				b.faults = append(b.faults, encode(params))
			}
		}
		b.mu.Unlock()
	}
}

// call calls a method, and returns its result.
func (b *browser) call(method string, params object) any {
	b.t.Helper()
	answer := make(chan object, 1)
	b.mu.Lock()
	b.calls++
	b.answers[b.calls] = answer
	m := object{"id": b.calls, "method": method, "params": params}
	if b.session != "" && !strings.HasPrefix(method, "Browser.") {
		m["sessionId"] = b.session
	}
	err := b.conn.WriteJSON(m)
	b.mu.Unlock()
	if err != nil {
		b.t.Fatal(err)
	}
	select {
	case a := <-answer:
		if a["error"] != nil {
			b.t.Fatalf("%s: %v", method, a["error"])
		}
		return a["result"]
	case <-time.After(patience):
		return nil
	}
}

// eval evaluates an expression in the page.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	result := b.call("Runtime.evaluate", object{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if thrown := at(result, "exceptionDetails"); thrown != nil {
		b.t.Fatalf("%s: %s", expression, encode(thrown))
	}
	return at(result, "result", "value")
}

// click clicks on the element that the selector finds and whose text or label holds text.
func (b *browser) click(selector, text string) {
	b.t.Helper()
	var where any
	eventually(b.t, "showing "+text, func() bool {
		quoted, _ := json.Marshal([]string{selector, text})
		where = b.eval(`(([selector, text]) => {
			const found = [...document.querySelectorAll(selector)].find((e) => (e.textContent + ' ' + (e.ariaLabel ?? '')).includes(text));
			if (!found) return null;
			const { x, y, width, height } = found.getBoundingClientRect();
			return [x + width / 2, y + height / 2];
		})(` + string(quoted) + `)`)
		return where != nil
	})
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", object{"type": kind, "x": at(where, 0), "y": at(where, 1), "button": "left", "clickCount": 1})
	}
}

// fill replaces what stands in the text field that has the focus.
func (b *browser) fill(text string) {
	b.t.Helper()
	for _, kind := range []string{"keyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", object{"type": kind, "key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": 2, "commands": []string{"selectAll"}})
	}
	b.call("Input.insertText", object{"text": text})
}

// shows waits until an element that the selector finds shows the text.
func (b *browser) shows(selector, text string) {
	b.t.Helper()
	eventually(b.t, "showing "+text, func() bool { return b.showing(selector, text) })
}

func (b *browser) showing(selector, text string) bool {
	b.t.Helper()
	quoted, _ := json.Marshal([]string{selector, text})
	shown, _ := b.eval(`(([selector, text]) => [...document.querySelectorAll(selector)].some((e) => e.textContent.includes(text)))(` + string(quoted) + `)`).(bool)
	return shown
}

// sent says whether a frame that holds the text was sent on a WebSocket.
func (b *browser) sent(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.frames, func(frame string) bool { return strings.Contains(frame, text) })
}

// blamed says whether the browser has said something against what holds the text.
func (b *browser) blamed(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.faults, func(fault string) bool { return strings.Contains(fault, text) })
}

// behaved fails the test if the page called another host than the server, or something went wrong in it.
func (b *browser) behaved(host string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requests) < 4 {
		b.t.Errorf("the browser has seen %d requests", len(b.requests))
	}
	for _, url := range b.requests {
		scheme, rest, _ := strings.Cut(url, ":")
		if scheme != "data" && scheme != "about" && !strings.HasPrefix(rest, "//"+host+"/") {
			b.t.Errorf("the page has called %s", url)
		}
	}
	for _, fault := range b.faults {
		b.t.Errorf("the browser says: %s", fault)
	}
}
