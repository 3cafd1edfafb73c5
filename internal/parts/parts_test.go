package parts_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/parts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 20 * time.Second

func start(t *testing.T, script string) *parts.Process {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	p, err := parts.Start(parts.Command{Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"READY=" + ready}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	err = parts.Poll(t.Context(), limit, func() error {
		_, err := os.Stat(ready)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestStopIsOrderly(t *testing.T) {
	p := start(t, `trap 'exit 3' TERM; touch "$READY"; while :; do sleep 0.01; done`)
	if p.Ended() {
		t.Fatal("ended before it was stopped")
	}
	if err := p.Pause(); err != nil { // A paused one can be stopped too.
		t.Fatal(err)
	}
	if err := p.Stop(limit); err != nil {
		t.Errorf("Stop = %v", err)
	}
	if !p.Ended() || p.Err() == nil || !strings.Contains(p.Err().Error(), "exit status 3") {
		t.Errorf("ended %v with %v, want exit status 3 from its own handler", p.Ended(), p.Err())
	}
	for what, err := range map[string]error{"Stop": p.Stop(limit), "Kill": p.Kill()} {
		if err != nil {
			t.Errorf("%s of an ended process = %v, want nothing", what, err)
		}
	}
	if err := p.Signal(syscall.SIGCONT); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal to an ended process = %v, want ErrProcessDone: its number may be another's", err)
	}
}

func TestStopKillsTheStubborn(t *testing.T) {
	p := start(t, `trap '' TERM; touch "$READY"; while :; do sleep 0.01; done`)
	if err := p.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "still running") {
		t.Errorf("Stop of a process that ignores SIGTERM = %v, want an error that says so", err)
	}
	if !p.Ended() {
		t.Error("a process that ignores SIGTERM still runs after Stop")
	}
}

func TestCommandGetsItsSurroundings(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	p, err := parts.Start(parts.Command{
		Path: "/bin/sh", Args: []string{"-c", `pwd; echo "$MINE"; echo oops >&2`}, Env: []string{"MINE=value"}, Dir: dir, Output: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil || out.String() != dir+"\nvalue\noops\n" {
		t.Errorf("output %q, %v", out.String(), err)
	}
	if _, err := parts.Start(parts.Command{Path: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start of a program that is not there = %v", err)
	}
}

func TestPoll(t *testing.T) {
	asked := 0
	err := parts.Poll(t.Context(), limit, func() error {
		if asked++; asked < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil || asked != 3 {
		t.Errorf("Poll = %v after %d questions, want success at the third", err, asked)
	}

	boom := errors.New("boom")
	asked = 0
	err = parts.Poll(t.Context(), limit, func() error { asked++; return parts.Final(boom) })
	if !errors.Is(err, boom) || asked != 1 {
		t.Errorf("Poll = %v after %d questions, want a final error at once", err, asked)
	}

	err = parts.Poll(t.Context(), time.Millisecond, func() error { return boom })
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), "not within 1ms") {
		t.Errorf("Poll = %v at its limit, want the last error and the limit", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := parts.Poll(ctx, limit, func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("Poll = %v with an ended context, want the last error", err)
	}
}

func TestWaitSocket(t *testing.T) {
	dir, err := parts.MkdirTemp("weir-parts-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	p := start(t, `touch "$READY"; while :; do sleep 0.01; done`)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitSocket(path, limit); err != nil {
		t.Errorf("WaitSocket = %v with a listener there", err)
	}
	l.Close()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitSocket(path, limit); err == nil || !strings.Contains(err.Error(), "ended before it listened") {
		t.Errorf("WaitSocket = %v for a dead process, want that it says so at once", err)
	}
}

func TestFindByVariableAndPath(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"mine", "redis-server"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	t.Setenv("REDIS_BIN", "")
	if got, err := parts.FindNow(parts.Redis); err != nil || got != filepath.Join(dir, "redis-server") {
		t.Errorf("found %q, %v, want the one on PATH", got, err)
	}
	t.Setenv("REDIS_BIN", filepath.Join(dir, "mine"))
	if got, err := parts.FindNow(parts.Redis); err != nil || got != filepath.Join(dir, "mine") {
		t.Errorf("found %q, %v, want that of REDIS_BIN", got, err)
	}
	t.Setenv("REDIS_BIN", filepath.Join(dir, "none"))
	if _, err := parts.FindNow(parts.Redis); err == nil || !strings.Contains(err.Error(), "REDIS_BIN") {
		t.Errorf("found by a REDIS_BIN that is not there: %v, want an error that names the variable", err)
	}
}
