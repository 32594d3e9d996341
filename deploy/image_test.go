package deploy_test

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"parley/e2e/servers"
)

// The version that the release build is told to be.
const (
	version = "v9.8.7"
	commit  = "0123456789abcdef"
)

// build builds what the Dockerfile builds, by its own command.
func build(t *testing.T, to string) {
	t.Helper()
	dockerfile, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /out/parley \.$`).FindSubmatch(dockerfile)
	if found == nil {
		t.Fatal("the Dockerfile builds nothing")
	}
	cmd := exec.Command("sh", "-c", string(found[1])+` -o "$0" parley`, to)
	cmd.Env = append(os.Environ(), "VERSION="+version, "COMMIT="+commit)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// nonroot is the user of the image.
const nonroot = 65532

// TestImage runs the release build as the image does: in a root folder that holds the binary and
// the certificates alone, as a user who owns nothing but /data.
func TestImage(t *testing.T) {
	t.Parallel()
	if os.Getenv("CI") != "true" {
		t.Skip("a release build compiles everything anew, which takes minutes: CI=true does it")
	}
	if os.Getuid() != 0 {
		servers.Missing(t, "only root may change the root folder")
	}
	root := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	build(t, filepath.Join(root, "parley"))
	must(os.Mkdir(filepath.Join(root, "data"), 0o700))
	must(os.Chown(filepath.Join(root, "data"), nonroot, nonroot))
	// The certificates are those of a model server of the test's, which so proves that they are
	// used.
	called := make(chan struct{}, 100)
	model := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		called <- struct{}{}
		w.WriteHeader(http.StatusBadRequest)
	}))
	t.Cleanup(model.Close)
	certs := filepath.Join(root, "etc/ssl/certs")
	must(os.MkdirAll(certs, 0o755))
	must(os.WriteFile(filepath.Join(certs, "ca-certificates.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: model.Certificate().Raw}), 0o644))

	within := func(args ...string) *exec.Cmd {
		cmd := exec.Command("/parley", args...)
		cmd.Dir, cmd.Env = "/data", settings
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: nonroot, Gid: nonroot}}
		return cmd
	}
	line, err := within("--version").Output()
	if want := "parley " + version + ", commit " + commit + ", " + runtime.Version() + "\n"; err != nil || string(line) != want {
		t.Errorf("--version says %q, want %q; %v", line, want, err)
	}
	s := start(t, within(), t.TempDir())
	chats(t, http.DefaultClient, s.url)
	made, err := within("token", "create").Output() // beside the server
	secret := regexp.MustCompile(`at_\w+`).FindString(string(made))
	req, _ := http.NewRequest(http.MethodGet, s.url+"/v1/webhooks", nil)
	req.Header.Set("Authorization", "Bearer "+secret)
	res, callErr := http.DefaultClient.Do(req)
	if err != nil || callErr != nil || res.StatusCode != http.StatusOK {
		t.Errorf("token create: %s, %v, %v, %v", made, err, res, callErr)
	}
	s.stop()

	again := within()
	again.Env = slices.Concat(settings, []string{"OPENAI_BASE_URL=" + model.URL})
	s = start(t, again, t.TempDir())
	res, err = post(http.DefaultClient, s.url+chatPath, "application/json", chatBody)
	if err != nil || res.StatusCode != http.StatusBadGateway || len(called) == 0 {
		t.Errorf("a model server with a certificate of the image's list was called %d times: %v %v", len(called), res, err)
	}
	s.stop()
	names, err := os.ReadDir(root)
	must(err)
	for _, name := range names {
		if !slices.Contains([]string{"data", "etc", "parley"}, name.Name()) {
			t.Errorf("it wrote %s", name.Name())
		}
	}
}
