package sidecar

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/pkg/limit"
)

// events is what happened, in order.
type events struct {
	mu  sync.Mutex
	all []string
}

func (e *events) add(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, name)
}

func (e *events) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

type fakeService struct {
	*events
	listenErr error
	fail      chan error // what Serve returns, unless it is stopped first
	stopped   chan struct{}
	idle      bool
}

var _ service = (*fakeService)(nil)

func (f *fakeService) Listen(context.Context) error {
	f.add("listen")
	return f.listenErr
}

func (f *fakeService) Serve() error {
	select {
	case err := <-f.fail:
		return err
	case <-f.stopped:
		return nil
	}
}

func (f *fakeService) SetServing(serving bool) {
	if serving {
		f.add("serving")
	} else {
		f.add("not serving")
	}
}

func (f *fakeService) WaitIdle(ctx context.Context) bool {
	f.add("wait idle")
	if !f.idle {
		<-ctx.Done()
	}
	return f.idle
}

func (f *fakeService) Stop(context.Context) error {
	f.add("stop service")
	close(f.stopped)
	return nil
}

func (*fakeService) TCPAddr() string { return "" }

type fakeStore struct{ *events }

var _ store = fakeStore{}

func (fakeStore) Debit(context.Context, *limit.Ask) {}

func (f fakeStore) Run(ctx context.Context) error {
	<-ctx.Done()
	f.add("store ended")
	return nil
}

func (f fakeStore) Close() error {
	f.add("close store")
	return errors.New("not clean")
}

func withFakes(t *testing.T) (*Sidecar, *fakeService) {
	t.Helper()
	c := Defaults()
	c.Policy.AllowEmpty = true
	c.Store.Type = StoreMemory
	c.Ops.Address, c.Admin.Address = "127.0.0.1:0", ""
	c.Drain.Delay = time.Millisecond
	s, err := New(Options{Config: c})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeService{events: &events{}, fail: make(chan error, 1), stopped: make(chan struct{}), idle: true}
	s.service, s.store = f, fakeStore{f.events}
	return s, f
}

var wholeLife = []string{
	"listen", "serving", "not serving", "wait idle", "stop service", "store ended", "close store",
}

func TestEndsInOrder(t *testing.T) {
	for _, idle := range []bool{true, false} {
		s, f := withFakes(t)
		f.idle = idle
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			<-s.Started()
			stop()
		}()
		err := s.Run(ctx)
		if err == nil || err.Error() != "close store: not clean" {
			t.Errorf("Run() = %v, want the error of the store's step alone", err)
		}
		if diff := cmp.Diff(wholeLife, f.list()); diff != "" {
			t.Errorf("idle %v: %s", idle, diff)
		}
	}
}

// A part that fails ends the whole process, in the same order, with its error.
func TestEndsWhenAPartFails(t *testing.T) {
	s, f := withFakes(t)
	broken := errors.New("broken")
	go func() {
		<-s.Started()
		f.fail <- broken
	}()
	if err := s.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("Run() = %v, want %v", err, broken)
	}
	if diff := cmp.Diff(wholeLife, f.list()); diff != "" {
		t.Error(diff)
	}
}

// A service that cannot listen leaves nothing running, and was never ready.
func TestUndoesAFailedStart(t *testing.T) {
	s, f := withFakes(t)
	f.listenErr = errors.New("taken")
	if err := s.Run(t.Context()); !errors.Is(err, f.listenErr) {
		t.Errorf("Run() = %v, want %v", err, f.listenErr)
	}
	if diff := cmp.Diff([]string{"listen", "store ended", "close store"}, f.list()); diff != "" {
		t.Error(diff)
	}
	select {
	case <-s.Started():
		t.Error("it says that it started")
	default:
	}
	if got := s.notReady(); got != stateStarting {
		t.Errorf("not ready because of %q, want %q", got, stateStarting)
	}
}

// The store in memory begins at the wall clock that it is given and is never
// moved by it again.
func TestSteadyClock(t *testing.T) {
	start := time.UnixMilli(1_000_000)
	now := steady(start)
	first := now()
	if first < start.UnixMilli() {
		t.Errorf("begins at %d, want %d or a little later", first, start.UnixMilli())
	}
	if second := now(); second < first {
		t.Errorf("went back from %d to %d", first, second)
	}
}
