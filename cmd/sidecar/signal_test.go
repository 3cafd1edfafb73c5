package main

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The first SIGTERM drains, which an Envoy that stays connected makes last;
// the second ends the process at once.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "weir") // a short name, for the socket's sake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command("sidecar", "serve", "--rls.tcp=", "--rls.unix.path="+socket, "--ops.address=", "--admin.address=",
		"--store.type=memory", "--policy.allow_empty", "--drain.delay=10m", "--drain.timeout=20m")
	var log lineWatcher
	log.seen = make(chan struct{})
	log.want = []byte("msg=stopping")
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })

	const patience = 30 * time.Second
	var conn net.Conn
	for deadline := time.Now().Add(patience); ; {
		if conn, err = net.Dial("unix", socket); err == nil { //nolint:noctx // patience bounds the test
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer conn.Close()
	// The server speaks first once it has accepted, and counts from then on.
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-log.seen:
	case err := <-ended:
		t.Fatalf("ended at the first signal: %v", err)
	case <-time.After(patience):
		t.Fatal("the first signal did nothing")
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		exit := (*exec.ExitError)(nil)
		if !errors.As(err, &exit) || exit.ExitCode() != exitFailed {
			t.Errorf("ended with %v, want exit code %d", err, exitFailed)
		}
	case <-time.After(patience):
		t.Fatal("the second signal did nothing")
	}
}

// TestEndsInOrder: also when nobody reads the log any more, whose next line
// would otherwise end the process, and when the terminal goes, after which the
// sidecar goes on: a SIGHUP has the policy files read again.
func TestEndsInOrder(t *testing.T) {
	for name, hangup := range map[string]bool{"without a reader": false, "after a hangup": true} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "weir")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			socket := filepath.Join(dir, "s")
			cmd := exec.Command("sidecar", "serve", "--rls.tcp=", "--rls.unix.path="+socket, "--ops.address=", "--admin.address=",
				"--store.type=memory", "--policy.allow_empty")
			log, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = writer
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = writer.Close()
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			lines := bufio.NewScanner(log)
			if !lines.Scan() {
				t.Fatal(lines.Err())
			}
			health := exec.Command("sidecar", "health", "--addr=unix://"+socket, "--wait", "--timeout=30s")
			if out, err := health.CombinedOutput(); err != nil {
				t.Fatalf("health: %v: %s", err, out)
			}
			if hangup {
				if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
					t.Fatal(err)
				}
				for !strings.Contains(lines.Text(), `msg="policy unchanged"`) {
					if !lines.Scan() {
						t.Fatalf("the log ends without an answer to SIGHUP: %v", lines.Err())
					}
				}
			}
			_ = log.Close()
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Errorf("ended with %v, want exit code 0", err)
			}
			if _, err := os.Lstat(socket); err == nil {
				t.Error("the socket is still there")
			}
		})
	}
}

// lineWatcher closes seen when want was written. It has one writer.
type lineWatcher struct {
	all  bytes.Buffer
	want []byte
	seen chan struct{}
	once bool
}

func (w *lineWatcher) Write(p []byte) (int, error) {
	w.all.Write(p)
	if !w.once && bytes.Contains(w.all.Bytes(), w.want) {
		w.once = true
		close(w.seen)
	}
	return len(p), nil
}
