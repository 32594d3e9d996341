package e2e_test

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"parley/e2e/servers"
)

// TestTour runs the programs of the README's tour: the one that watches, and the one that receives.
func TestTour(t *testing.T) {
	t.Parallel()
	s := start(t)
	dir := t.TempDir()
	run := func(name string, args ...string) func(what string) {
		program := filepath.Join(dir, name)
		if out, err := exec.Command("go", "build", "-o", program, "parley/docs/tour/"+name).CombinedOutput(); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		cmd := exec.Command(program, args...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := make(chan string, 1000)
		go func() {
			defer close(lines)
			for scan := bufio.NewScanner(io.Reader(out)); scan.Scan(); {
				lines <- scan.Text()
			}
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return func(what string) {
			t.Helper()
			deadline := time.After(patience)
			for {
				select {
				case line, open := <-lines:
					if !open {
						t.Fatalf("%s ended", name)
					}
					if strings.Contains(line, what) {
						return
					}
				case <-deadline:
					t.Fatalf("%s never says %q", name, what)
				}
			}
		}
	}
	watching := run("watch", "-url", "ws"+strings.TrimPrefix(s.url(), "http")+"/graphql", "-token", token)
	watching("watching")
	addr := servers.FreePort(t)
	_, secret := s.register("http://"+addr+"/hook", "message.created", "run.finished")
	receiving := run("receiver", "-addr", addr, "-secret", secret)
	receiving("receiving at")
	s.chat("When are you open on Saturday?", "")
	receiving("verified evt_")
	receiving("16:00")
	s.chat("When are you open on Saturday?", "") // whatever happened before the subscription began, this comes after it
	watching("MESSAGE_CREATED OUTBOUND")
}

// TestTourRefusals: a receiver without a secret would take what anybody signs, and a watcher
// without a token would see nothing.
func TestTourRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, secrets := range map[string][]string{"receiver": {"", "whsec_", "whsec_…", "c2VjcmV0"}, "watch": {"", "sk_key"}} {
		program := filepath.Join(dir, name)
		if out, err := exec.Command("go", "build", "-o", program, "parley/docs/tour/"+name).CombinedOutput(); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		option := map[string]string{"receiver": "-secret", "watch": "-token"}[name]
		for _, secret := range secrets {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			cmd := exec.CommandContext(ctx, program, option, secret)
			out, _ := cmd.CombinedOutput()
			cancel()
			if line := string(out); cmd.ProcessState.ExitCode() != 2 || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, name+": "+option+" must be") {
				t.Errorf("%s %s %q: %d %q", name, option, secret, cmd.ProcessState.ExitCode(), line)
			}
		}
	}
}
