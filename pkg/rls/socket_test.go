package rls_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

var one = request([]limit.Entry{{Key: "k", Value: "v"}})

// named decides with a rule that names the server.
func named(name string) rls.Deps {
	return rls.Deps{Decide: func(ctx context.Context, d *pipeline.Decision) {
		allow(ctx, d)
		d.Statuses[0].HasLimit, d.Statuses[0].Name = true, name
	}}
}

// answeredBy is the name of the server that answers at path.
func answeredBy(t *testing.T, path string) string {
	t.Helper()
	a, err := rls.Call(within(t), "unix://"+path, one)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(a.Text(), `"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

func TestSocketModeAndCleanUp(t *testing.T) {
	path := socketIn(t)
	s := start(t, rls.Config{Unix: path}, rls.Deps{})
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != os.ModeSocket|0o660 {
		t.Errorf("mode = %v, want a socket with 0660", got)
	}
	if b, err := os.ReadFile(path + ".lock"); err != nil || string(b) != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("lock file = %q, %v, want this process's id", b, err)
	}
	s.stop(t)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after a clean stop the path is %v, want gone", err)
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
	if err != nil || len(left) != 1 || left[0] != path+".lock" {
		t.Errorf("left over: %v, want the lock file", left)
	}
	hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(path), ".w*"))
	if len(hidden) > 0 {
		t.Errorf("left over: %v", hidden)
	}

	open := start(t, rls.Config{Unix: path, UnixMode: 0o600}, rls.Deps{})
	info, err = os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode = %v, %v, want 0600", info, err)
	}
	open.stop(t)
}

func TestLiveSocketIsRefused(t *testing.T) {
	path := socketIn(t)
	start(t, rls.Config{Unix: path}, named("first"))
	second := prepare(t, rls.Config{Unix: path}, rls.Deps{})
	err := second.Listen(within(t))
	if err == nil || !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) || !strings.Contains(err.Error(), path+".lock") {
		t.Errorf("Listen() on a live socket = %v, want an error that names the holder and the lock", err)
	}
	if got := answeredBy(t, path); got != "first" {
		t.Errorf("answered by %q, want first", got)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := socketIn(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close() // as a killed process leaves it: a file that nobody answers at
	if err := os.WriteFile(path+".lock", []byte("999999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, rls.Config{Unix: path}, named("new"))
	if got := answeredBy(t, path); got != "new" {
		t.Errorf("answered by %q, want new", got)
	}
}

func TestSocketOfAnotherProgramIsRefused(t *testing.T) {
	path := socketIn(t)
	l, err := net.Listen("unix", path) // without our lock
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	s := prepare(t, rls.Config{Unix: path}, rls.Deps{})
	if err := s.Listen(within(t)); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("Listen() = %v, want it refused", err)
	}
	taker := start(t, rls.Config{Unix: path, TakeOver: true}, named("taker"))
	if got := answeredBy(t, path); got != "taker" {
		t.Errorf("answered by %q, want taker", got)
	}
	taker.stop(t)
}

func TestPathsThatAreNoSocket(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("x", 108-len(dir)-1))
	for path, want := range map[string]string{
		file:                            "a file is there",
		link:                            "a symbolic link is there",
		dir:                             "a directory is there",
		long:                            "108 bytes, a socket's may have 107",
		"@abstract":                     "abstract",
		filepath.Join(dir, "no", "dir"): "no such file or directory; create the directory " + filepath.Join(dir, "no"),
	} {
		for _, takeOver := range []bool{false, true} {
			s := prepare(t, rls.Config{TCP: "127.0.0.1:0", Unix: path, TakeOver: takeOver}, rls.Deps{})
			if err := s.Listen(within(t)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Listen(%s) = %v, want %q", path, err, want)
			}
			if addr := s.TCPAddr(); addr != "" {
				t.Errorf("Listen(%s) failed and left %s open", path, addr)
			}
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file is now %q, %v", b, err)
	}
}

// TestLongestPath holds that a directory too long for the temporary name is
// refused with its reason, and one that is just short enough works.
func TestLongestPath(t *testing.T) {
	base, err := os.MkdirTemp("", "w")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	for _, c := range []struct {
		dirLen int
		ok     bool
	}{{80, true}, {100, false}} {
		dir := filepath.Join(base, strings.Repeat("d", c.dirLen-len(base)-1))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := prepare(t, rls.Config{Unix: filepath.Join(dir, "s")}, rls.Deps{})
		err := s.Listen(within(t))
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "too long for the temporary name") {
			t.Errorf("Listen() in a directory of %d bytes = %v, want ok = %v", c.dirLen, err, c.ok)
		}
		if err == nil {
			if err := s.Stop(within(t)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestStopLeavesASuccessorsSocket(t *testing.T) {
	path := socketIn(t)
	first := start(t, rls.Config{Unix: path}, named("first"))
	before := inode(t, path)
	second := start(t, rls.Config{Unix: path, TakeOver: true}, named("second"))
	if after := inode(t, path); after == before {
		t.Errorf("the path still leads to inode %d", after)
	}
	if got := answeredBy(t, path); got != "second" {
		t.Errorf("answered by %q, want second", got)
	}
	// The predecessor drains and holds the lock: a third start is refused.
	third := prepare(t, rls.Config{Unix: path}, rls.Deps{})
	if err := third.Listen(within(t)); err == nil {
		t.Error("Listen() while the predecessor drains = nil, want it refused")
	}
	first.stop(t)
	if got := answeredBy(t, path); got != "second" {
		t.Errorf("after the predecessor's stop answered by %q, want second", got)
	}
	// Now the lock is the second's: it passes through its polling.
	third = prepare(t, rls.Config{Unix: path}, rls.Deps{})
	eventually(t, "the successor holds the lock", func() bool {
		return locked(t, path+".lock")
	})
	if err := third.Listen(within(t)); err == nil {
		t.Error("Listen() beside the successor = nil, want it refused")
	}
	second.stop(t)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after the successor's stop the path is %v, want gone", err)
	}
}

// TestLostPathIsLogged has a server that nobody preceded say, once, that its
// path is not its own any more.
func TestLostPathIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		lose func(t *testing.T, path string)
		want string
	}{
		"taken over": {func(t *testing.T, path string) {
			t.Helper()
			start(t, rls.Config{Unix: path, TakeOver: true}, rls.Deps{})
		}, `level=INFO msg="another process took the unix socket over"`},
		"removed": {func(t *testing.T, path string) {
			t.Helper()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, `level=WARN msg="the unix socket was removed"`},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncBuffer
			path := socketIn(t)
			s := start(t, rls.Config{Unix: path}, rls.Deps{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if said := log.String(); said != "" {
				t.Errorf("logged %q before anything happened", said)
			}
			c.lose(t, path)
			eventually(t, c.want, func() bool { return strings.Contains(log.String(), c.want) })
			s.stop(t)
			if n := strings.Count(log.String(), "\n"); n != 1 {
				t.Errorf("logged %d lines, want one: %s", n, log.String())
			}
		})
	}
}

// syncBuffer takes a log from any goroutine.
type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// locked says whether somebody holds the lock.
func locked(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// TestChainOfTakeOvers has a second successor before the first one got the
// lock: the lock goes to the one that the path leads to.
func TestChainOfTakeOvers(t *testing.T) {
	path := socketIn(t)
	first := start(t, rls.Config{Unix: path}, named("first"))
	second := start(t, rls.Config{Unix: path, TakeOver: true}, named("second"))
	third := start(t, rls.Config{Unix: path, TakeOver: true}, named("third"))
	first.stop(t)
	eventually(t, "the last one holds the lock", func() bool { return locked(t, path+".lock") })
	second.stop(t)
	if !locked(t, path+".lock") {
		t.Error("the lock ended with a server that the path did not lead to")
	}
	if got := answeredBy(t, path); got != "third" {
		t.Errorf("answered by %q, want third", got)
	}
	third.stop(t)
	if locked(t, path+".lock") {
		t.Error("the lock outlives its holder")
	}
}

// TestStartersRace lets several servers start at once, over a stale file and
// over none: exactly one gets the path.
func TestStartersRace(t *testing.T) {
	const starters = 8
	for round := range 10 {
		path := socketIn(t)
		if round%2 == 0 {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}
		servers := make([]*running, starters)
		errs := make([]error, starters)
		for i := range servers {
			servers[i] = prepare(t, rls.Config{Unix: path}, named(strconv.Itoa(i)))
		}
		ctx := within(t)
		var wg sync.WaitGroup
		for i, s := range servers {
			wg.Go(func() { errs[i] = s.Listen(ctx) })
		}
		wg.Wait()
		winner := -1
		for i, err := range errs {
			switch {
			case err == nil && winner >= 0:
				t.Fatalf("both %d and %d got the path", winner, i)
			case err == nil:
				winner = i
			}
		}
		if winner < 0 {
			t.Fatalf("nobody got the path: %v", errs)
		}
		servers[winner].serve(t)
		if got := answeredBy(t, path); got != strconv.Itoa(winner) {
			t.Errorf("answered by %s, want %d", got, winner)
		}
		servers[winner].stop(t)
	}
}

// TestStopRacesTakeOver starts a successor while its predecessor looks at the
// path to unlink it: the successor's socket stays.
func TestStopRacesTakeOver(t *testing.T) {
	path := socketIn(t)
	current := start(t, rls.Config{Unix: path}, named("0"))
	for i := range 50 {
		name := strconv.Itoa(i + 1)
		next := prepare(t, rls.Config{Unix: path, TakeOver: true}, named(name))
		ctx := within(t)
		listening := make(chan error, 1)
		go func() { listening <- next.Listen(ctx) }()
		current.stop(t)
		if err := <-listening; err != nil {
			t.Fatal(err)
		}
		next.serve(t)
		if got := answeredBy(t, path); got != name {
			t.Fatalf("answered by %q, want %q", got, name)
		}
		current = next
	}
}

// TestHandOverUnderLoad replaces a server again and again while clients call;
// none of the calls may fail.
func TestHandOverUnderLoad(t *testing.T) {
	const clients, generations = 4, 5
	path := socketIn(t)
	current := start(t, rls.Config{Unix: path}, named("0"))

	done := make(chan struct{})
	var calls [generations]atomic.Int64 // by the server that answered
	var wg sync.WaitGroup
	ctx := within(t)
	for range clients {
		wg.Go(func() {
			client, err := rls.NewClient("unix://" + path)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = client.Close() }()
			for {
				select {
				case <-done:
					return
				default:
				}
				a, err := client.Call(ctx, one)
				if err != nil {
					t.Errorf("a call failed: %v", err)
					return
				}
				_, rest, _ := strings.Cut(a.Text(), `"`)
				i, err := strconv.Atoi(rest[:1])
				if err != nil {
					t.Error(err)
					return
				}
				calls[i].Add(1)
			}
		})
	}
	answered := func(i int) func() bool { return func() bool { return t.Failed() || calls[i].Load() >= 100 } }
	for i := 1; i < generations; i++ {
		eventually(t, fmt.Sprintf("server %d answers", i-1), answered(i-1))
		next := start(t, rls.Config{Unix: path, TakeOver: true}, named(strconv.Itoa(i)))
		current.stop(t)
		current = next
	}
	eventually(t, "the last server answers", answered(generations-1))
	close(done)
	wg.Wait()
}
