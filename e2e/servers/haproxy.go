package servers

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// HAProxy is a running balancer.
type HAProxy struct {
	*Server
	stats string // its address
}

// Balance starts an HAProxy in front of some servers, to which it sends requests while their
// /readyz is 200.
func Balance(t T, addresses ...string) *HAProxy {
	t.Helper()
	program := Need(t, "haproxy", "/usr/sbin")
	p := &HAProxy{Server: &Server{t: t, Addr: FreePort(t)}, stats: FreePort(t)}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	var b strings.Builder
	fmt.Fprintf(&b, "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n timeout check 2s\n"+
		"frontend in\n bind %s\n default_backend all\n"+
		"frontend stats\n bind %s\n stats enable\n stats uri /\n"+
		"backend all\n option httpchk GET /readyz\n default-server check inter 200ms fall 2 rise 1\n", p.Addr, p.stats)
	for i, address := range addresses {
		fmt.Fprintf(&b, " server s%d %s\n", i, address)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	p.make = func() *exec.Cmd { return exec.Command(program, "-db", "-f", file) }
	p.Up()
	t.Cleanup(p.Kill)
	return p
}

// SeesUp is how many of the servers the balancer sends requests to just now.
func (p *HAProxy) SeesUp() (n int) {
	p.t.Helper()
	res, err := http.Get("http://" + p.stats + "/;csv")
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	rows := csv.NewReader(res.Body)
	rows.FieldsPerRecord = -1
	all, err := rows.ReadAll()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, row := range all { // proxy, server, …, status at 17
		if len(row) > 17 && row[0] == "all" && row[1] != "BACKEND" && strings.HasPrefix(row[17], "UP") {
			n++
		}
	}
	return n
}
