package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

// onSocket are the flags of a sidecar that serves on a Unix socket alone, with budgets in memory.
func onSocket(t *testing.T, socket string, more ...string) []string {
	t.Helper()
	policy := writePolicy(t, `
domain: fleet
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1000}
`)
	return append([]string{
		"--policy.paths=" + policy, "--store.type=memory",
		"--rls.tcp=", "--rls.unix.path=" + socket, "--ops.address=127.0.0.1:0", "--admin.address=",
	}, more...)
}

// socketPath is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := parts.MkdirTemp("weir-socket-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "rls.sock")
}

func mustAllow(t *testing.T, client *rls.Client, when string) {
	t.Helper()
	answer, err := client.Call(t.Context(), request("user=ann"))
	if err != nil || answer.Code() != pipeline.OK {
		t.Fatalf("%s: %v, %v, want an answer that allows", when, answer, err)
	}
}

func newClient(t *testing.T, target string) *rls.Client {
	t.Helper()
	client, err := rls.NewClient(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestSocketOfACrashedSidecar: what a crash leaves at the path stands in nobody's way.
func TestSocketOfACrashedSidecar(t *testing.T) {
	socket := socketPath(t)
	startInstance(t, onSocket(t, socket)...).kill(t)
	if info, err := os.Lstat(socket); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Fatalf("after the crash: %v, %v, want the socket that it left", info, err)
	}
	i := startInstance(t, onSocket(t, socket)...)
	mustAllow(t, newClient(t, i.rls), "after the crash")
}

// TestSocketInUse: a start beside a sidecar that lives fails, names it, and leaves it alone; one that is told to take
// over does. The old one goes on for those who are connected, and its end takes nothing from its successor.
func TestSocketInUse(t *testing.T) {
	socket := socketPath(t)
	old := startInstance(t, onSocket(t, socket, "--drain.delay=1m", "--drain.timeout=2m")...)
	connected := newClient(t, old.rls)
	mustAllow(t, connected, "before")

	refused, err := launchInstance(t, onSocket(t, socket)...)
	if err == nil {
		t.Fatal("a second sidecar took the socket without being told to")
	}
	if log := readLog(refused.log); !strings.Contains(log, "process "+strconv.Itoa(old.process.PID())+" serves it") {
		t.Errorf("the refusal does not name process %d:\n%s", old.process.PID(), log)
	}
	after := newClient(t, old.rls)
	mustAllow(t, after, "after the refusal")
	after.Close()

	successor := startInstance(t, onSocket(t, socket, "--rls.take_over")...)
	before := old.sum(t, "weir_rls_requests_total")
	mustAllow(t, newClient(t, successor.rls), "a new connection")
	mustAllow(t, connected, "the old connection")
	if n := old.sum(t, "weir_rls_requests_total") - before; n != 1 {
		t.Errorf("the old sidecar answered %v of two calls, want the one of its own connection", n)
	}
	if n := successor.sum(t, "weir_rls_requests_total"); n != 1 {
		t.Errorf("the successor answered %v of two calls, want the one of the new connection", n)
	}

	old.terminate(t)
	connected.Close()
	for _, client := range []string{"first", "second"} {
		mustAllow(t, newClient(t, successor.rls), client+" connection while the old one ends")
	}
	if err := old.ended(t); err != nil {
		t.Errorf("the old sidecar ended with %v", err)
	}
	mustAllow(t, newClient(t, successor.rls), "after the end of the old one")
}

// TestDrain: after a SIGTERM a sidecar says first that it is not ready, and goes on answering, on old and on new
// connections, for as long as somebody is connected; then it ends well and takes its socket away.
func TestDrain(t *testing.T) {
	socket := socketPath(t)
	i := startInstance(t, onSocket(t, socket, "--drain.delay=5m", "--drain.timeout=10m")...)
	connected := newClient(t, i.rls)
	mustAllow(t, connected, "before")
	if code, _ := i.get(t, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz before = %d", code)
	}
	i.terminate(t)
	err := parts.Poll(t.Context(), patience, func() error {
		if code, body := i.get(t, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
			return fmt.Errorf("/readyz = %d %q", code, body)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := i.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz of a sidecar that drains = %d, want 200: nobody should kill it", code)
	}
	mustAllow(t, connected, "an old connection while it drains")
	late := newClient(t, i.rls)
	mustAllow(t, late, "a new connection while it drains")
	connected.Close()
	mustAllow(t, late, "the last connection")
	late.Close()
	if err := i.ended(t); err != nil {
		t.Errorf("the drained sidecar ended with %v", err)
	}
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}
