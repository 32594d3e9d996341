package render_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"parley/agent/render"
	"parley/store"
)

// shownAs names the section of a golden file that holds a channel's text.
var shownAs = map[store.Channel]string{
	store.Voice: "voice", store.SMS: "sms", store.WhatsApp: "whatsapp", store.Instagram: "plain", store.LinkedIn: "plain",
	store.Gmail: "plain", store.Outlook: "plain",
}

// TestGolden compares each channel with what a person has written by hand. A file of testdata names its sources, then holds
// sections: "reply", the Markdown; "voice", "sms", "whatsapp", "plain" (all other channels) and "html" (of e-mails), of
// which those that it is not about may be absent; "options": max N, truncated, and the wanted segments and encoding.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			want := sections(t, file)
			var maximum int
			var truncated bool
			for line := range strings.Lines(want["options"]) {
				line = strings.TrimSpace(line)
				truncated = truncated || line == "truncated"
				_, _ = fmt.Sscanf(line, "max %d", &maximum)
			}
			compared := 0
			for channel, section := range shownAs {
				got := render.Render(channel, want["reply"], maximum)
				if text, ok := want[section]; ok {
					compared++
					if diff := cmp.Diff(text, got.Text); diff != "" {
						t.Errorf("%s (-want +got):\n%s", channel, diff)
					}
					if got.Truncated != truncated {
						t.Errorf("%s: truncated is %t", channel, got.Truncated)
					}
				}
				sent := fmt.Sprintf("segments %d %s", got.Segments, got.Encoding)
				if channel == store.SMS && strings.Contains(want["options"], "segments") && !strings.Contains(want["options"], sent) {
					t.Errorf("%s, want %s", sent, want["options"])
				}
				isMail := channel == store.Gmail || channel == store.Outlook
				if html, ok := want["html"]; ok && isMail {
					if diff := cmp.Diff(html, got.HTML); diff != "" {
						t.Errorf("%s, HTML (-want +got):\n%s", channel, diff)
					}
				}
				if !isMail && got.HTML != "" {
					t.Errorf("%s has HTML: %s", channel, got.HTML)
				}
			}
			if compared == 0 {
				t.Error("the file compares nothing")
			}
		})
	}
}

// sections splits a golden file at its lines "-- name --".
func sections(t *testing.T, file string) map[string]string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	out, name := map[string]string{}, "sources"
	for line := range strings.Lines(string(content)) {
		if head, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(head, " --") {
			name = strings.TrimSuffix(head, " --")
			out[name] = ""
			continue
		}
		out[name] += line
	}
	if !strings.Contains(out["sources"], "Source") {
		t.Error("the file names no source")
	}
	for name := range out {
		out[name] = strings.TrimRight(out[name], "\n")
	}
	return out
}
