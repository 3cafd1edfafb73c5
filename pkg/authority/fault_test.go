package authority

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// Bad stores: each gives its class, at once where the store says what it is,
// else by the deadline; it is counted by class only, and used again by itself
// when it is well.

// wantClass debits against a bad store three times. The deadline is far, so
// that it is the store that decides the class and not a busy machine.
func (g *rig) wantClass(t *testing.T, want limit.Class) {
	t.Helper()
	for i := range 3 {
		if v := g.spend(patience); v != class(want) {
			t.Errorf("call %d: verdict %+v, want class %v", i, v, want)
		}
	}
	g.wantErrors(t, map[limit.Class]float64{want: 3})
}

func withUser(url, user string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	return scheme + "://" + user + "@" + rest
}

func TestStoreRefusesTheLogin(t *testing.T) {
	s := redistest.Start(t, redistest.WithPassword("right"), redistest.WithTCP())
	for _, user := range []string{":wrong", "nobody:right", ""} {
		t.Run(user, func(t *testing.T) {
			url := s.TCPURL()
			if user != "" {
				url = withUser(url, user)
			}
			run(t, url).wantClass(t, limit.ClassAuth)
		})
	}
	if v := run(t, withUser(s.TCPURL(), ":right")).spend(patience); v.Outcome != limit.Allow {
		t.Errorf("with the right password: verdict %+v", v)
	}
}

func TestStoreRefusesTheCommand(t *testing.T) {
	s := redistest.Start(t, redistest.WithTCP())
	for _, c := range []struct{ name, loaded, rules string }{
		{"no clock", "yes", "+@all -time"},
		{"no evalsha", "yes", "+@all -evalsha"},
		{"no script load", "no", "+@all -script"},
		{"no clock within the script", "yes", "+@all -mget"},
		{"no write within the script", "yes", "+@all -set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.MustDo(t, "SCRIPT", "FLUSH")
			if c.loaded == "yes" {
				s.MustDo(t, "SCRIPT", "LOAD", debitScript)
			}
			s.MustDo(t, append([]string{"ACL", "SETUSER", "weir", "reset", "on", ">pw", "~*"}, strings.Fields(c.rules)...)...)
			g := run(t, withUser(s.TCPURL(), "weir:pw"))
			g.wantClass(t, limit.ClassAuth)
			if got := used(t, s); got != 0 {
				t.Errorf("%d hits are stored, want none", got)
			}
			s.MustDo(t, "ACL", "SETUSER", "weir", "+@all")
			g.wantRecovery(t)
			s.MustDo(t, "FLUSHALL")
		})
	}
	s.MustDo(t, "ACL", "SETUSER", "weir", "reset", "on", ">pw", "~others:*", "+@all")
	run(t, withUser(s.TCPURL(), "weir:pw")).wantClass(t, limit.ClassAuth)
}

func TestStoreIsOutOfMemory(t *testing.T) {
	s := redistest.Start(t)
	g := run(t, s.URL())
	g.wantRecovery(t)
	before := used(t, s)
	s.MustDo(t, "CONFIG", "SET", "maxmemory", "1")
	g.wantClass(t, limit.ClassOutOfMemory)
	if got := used(t, s); got != before {
		t.Errorf("%d hits are stored, want %d as before", got, before)
	}
	if got := g.counter(t, "weir_authority_ambiguous_total"); got != 0 {
		t.Errorf("ambiguous = %v: nothing was executed", got)
	}
	s.MustDo(t, "CONFIG", "SET", "maxmemory", "0")
	g.wantRecovery(t)
}

func TestStoreIsAReplica(t *testing.T) {
	s := redistest.Start(t)
	g := run(t, s.URL())
	g.wantRecovery(t)
	before := used(t, s)
	s.MustDo(t, "REPLICAOF", "127.0.0.1", "1") // of a primary that is not there
	g.wantClass(t, limit.ClassReadOnly)
	if got := used(t, s); got != before {
		t.Errorf("%d hits are stored, want %d as before", got, before)
	}
	if got := g.counter(t, "weir_authority_repeats_total"); got == 0 {
		t.Error("nothing was repeated, although the next connection may reach the new primary")
	}
	s.MustDo(t, "REPLICAOF", "NO", "ONE")
	g.wantRecovery(t)
}

// TestReadOnlyIsDialedAgain: behind one address the primary changes. The debit
// that meets the old one, now a replica, goes to the new one over a connection
// of its own, within the same call.
func TestReadOnlyIsDialedAgain(t *testing.T) {
	old, next := redistest.Start(t), redistest.Start(t)
	for _, s := range []*redistest.Server{old, next} {
		s.MustDo(t, "SCRIPT", "LOAD", debitScript)
	}
	var socket atomic.Pointer[string]
	lead := func(s *redistest.Server) {
		path := s.Socket()
		socket.Store(&path)
	}
	lead(old)
	g := run(t, listen(t, func(c net.Conn) { pipe(c, *socket.Load()) }))
	g.wantRecovery(t)
	old.MustDo(t, "REPLICAOF", "127.0.0.1", "1")
	lead(next)
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Errorf("verdict %+v, want it allowed by the new primary", v)
	}
	if got := [2]int64{used(t, old), used(t, next)}; got != [2]int64{1, 1} {
		t.Errorf("%v hits are stored on the old and the new primary, want one each", got)
	}
	g.wantErrors(t, nil)
}

func TestStoreCannotWriteToDisk(t *testing.T) {
	s := redistest.Start(t, redistest.WithArgs("--min-replicas-to-write", "1"))
	g := run(t, s.URL())
	g.wantClass(t, limit.ClassReadOnly)
	s.MustDo(t, "CONFIG", "SET", "min-replicas-to-write", "0")
	g.wantRecovery(t)
}

// TestStoreIsLoading reloads a data set from disk, slowly, so that the store
// answers LOADING meanwhile.
func TestStoreIsLoading(t *testing.T) {
	s := redistest.Start(t, withDebug(t))
	if _, err := s.Do("CONFIG", "SET", "loading-process-events-interval-bytes", "1024"); err != nil {
		t.Logf("this store cannot be held while it is loading, so a proxy says so: %v", err)
		p := newProxy(t, s)
		g := run(t, p.url)
		g.wantRecovery(t)
		p.setOnReply(func([]byte) ([]byte, bool) {
			return []byte("-LOADING Redis is loading the dataset in memory\r\n"), true
		})
		g.wantClass(t, limit.ClassLoading)
		p.onReply.Store(nil)
		g.wantRecovery(t)
		return
	}
	g := run(t, s.URL())
	g.wantRecovery(t)
	s.MustDo(t, "DEBUG", "POPULATE", "20000")
	s.MustDo(t, "CONFIG", "SET", "key-load-delay", "200") // µs: 4 s in all, unless it is told otherwise
	reload := make(chan struct{})
	other := listenerTo(t, s)
	go func() {
		defer close(reload)
		_ = other.send("DEBUG", "RELOAD")
	}()
	watch := listenerTo(t, s)
	eventually(t, "the store is loading", func() bool { return strings.HasPrefix(watch.send("GET", "x"), "-LOADING") })
	g.wantClass(t, limit.ClassLoading)
	if got := watch.send("CONFIG", "SET", "key-load-delay", "0"); !strings.HasPrefix(got, "+OK") {
		t.Logf("the store loads to the end, slowly: %s", got)
	}
	<-reload
	g.wantRecovery(t)
}

// TestStoreIsBusy: another script blocks the store for longer than it lets pass.
func TestStoreIsBusy(t *testing.T) {
	s := redistest.Start(t, redistest.WithArgs("--lua-time-limit", "1"))
	g := run(t, s.URL())
	g.wantRecovery(t)
	before := used(t, s)
	ended := make(chan struct{})
	blocker := listenerTo(t, s)
	go func() {
		defer close(ended)
		_ = blocker.send("EVAL", "while true do end", "0")
	}()
	watch := listenerTo(t, s)
	eventually(t, "the store is busy", func() bool { return strings.HasPrefix(watch.send("GET", "x"), "-BUSY") })
	g.wantClass(t, limit.ClassBusy)
	if got := watch.send("SCRIPT", "KILL"); !strings.HasPrefix(got, "+OK") {
		t.Fatalf("SCRIPT KILL = %s", got)
	}
	<-ended
	if got := used(t, s); got != before {
		t.Errorf("%d hits are stored, want %d as before", got, before)
	}
	g.wantRecovery(t)
}

// wire is a plain connection to a server, for what blocks it.
type wire struct {
	net.Conn
	r *bufio.Reader
}

func listenerTo(t *testing.T, s *redistest.Server) *wire {
	t.Helper()
	c, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &wire{c, bufio.NewReader(c)}
}

// send sends one command and returns the first line of the reply.
func (w *wire) send(args ...string) string {
	command := fmt.Sprintf("*%d\r\n", len(args))
	for _, a := range args {
		command += fmt.Sprintf("$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := w.Write([]byte(command)); err != nil {
		return err.Error()
	}
	reply, err := readReply(w.r)
	if err != nil {
		return err.Error()
	}
	return string(reply)
}

// TestStoreIsNoRedis: whatever listens there, the caller gets a class in time.
func TestStoreIsNoRedis(t *testing.T) {
	say := func(text string) func(net.Conn) {
		return func(c net.Conn) {
			if _, err := bufio.NewReader(c).ReadByte(); err == nil {
				_, _ = c.Write([]byte(text))
			}
		}
	}
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		want  limit.Class
	}{
		{"an HTTP server", say("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), limit.ClassBadReply},
		{"noise", say("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"), limit.ClassBadReply},
		{"a server that closes at once", func(net.Conn) {}, limit.ClassRefused},
		{"a server that closes after the command", say(""), limit.ClassRefused},
		{"too many clients", say("-ERR max number of clients reached\r\n"), limit.ClassRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := run(t, listen(t, c.serve))
			g.wantClass(t, c.want)
			if got := g.counter(t, "weir_authority_ambiguous_total"); got != 0 {
				t.Errorf("ambiguous = %v, although nothing was sent", got)
			}
		})
	}
	t.Run("a server that says nothing", func(t *testing.T) {
		mute := func(c net.Conn) { _, _ = bufio.NewReader(c).ReadString(0) }
		g := run(t, listen(t, mute), func(c *Config) { c.DialTimeout = 100 * time.Millisecond })
		if v := g.spend(50 * time.Millisecond); v != class(limit.ClassExpired) && v != class(limit.ClassRefused) {
			t.Errorf("verdict %+v, want a class that says that nothing was sent", v)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		g := run(t, "unix:///nonexistent/redis.sock")
		g.wantClass(t, limit.ClassRefused)
	})
}

// TestScriptThatFails: an error of the script itself is a class of its own. It
// cannot be told from one after a write, so it is ambiguous.
func TestScriptThatFails(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	g := run(t, p.url)
	g.wantRecovery(t)
	p.setOnReply(func([]byte) ([]byte, bool) {
		return []byte("-ERR user_script:7: attempt to index a nil value script: 01, on @user_script:7.\r\n"), true
	})
	g.wantClass(t, limit.ClassScript)
	if got := g.counter(t, "weir_authority_ambiguous_total"); got != 3 {
		t.Errorf("ambiguous = %v, want 3", got)
	}
	p.setOnReply(func([]byte) ([]byte, bool) { return []byte("-NOSCRIPT No matching script.\r\n"), true })
	if v := g.spend(patience); v != class(limit.ClassScript) {
		t.Errorf("a script that is lost again and again: verdict %+v, want class %v", v, limit.ClassScript)
	}
	if got := g.counter(t, "weir_authority_ambiguous_total"); got != 3 {
		t.Errorf("ambiguous = %v, want 3 as before: what is not there was not executed", got)
	}
	p.onReply.Store(nil)
	g.wantRecovery(t)
}

// TestScriptLostAfterOtherTroubleIsLoaded: the repeats that other answers have
// used up do not keep a lost script from being loaded.
func TestScriptLostAfterOtherTroubleIsLoaded(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	g := run(t, p.url)
	g.wantRecovery(t)
	var calls atomic.Int64
	p.setOnReply(func(reply []byte) ([]byte, bool) {
		if calls.Add(1) <= maxRepeats {
			s.MustDo(t, "FLUSHALL") // what was executed here was not, by the answer
			s.MustDo(t, "SCRIPT", "FLUSH")
			return []byte("-LOADING Redis is loading the dataset in memory\r\n"), true
		}
		return reply, true
	})
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Errorf("verdict %+v, want it allowed", v)
	}
	g.wantErrors(t, nil)
}

// TestErrorsOfEveryStore has the words of errors that these stores do not give.
func TestErrorsOfEveryStore(t *testing.T) {
	for text, want := range map[string]limit.Class{
		"MOVED 3999 127.0.0.1:6381":                                   limit.ClassMoved,
		"ASK 3999 127.0.0.1:6381":                                     limit.ClassMoved,
		"TRYAGAIN Multiple keys request during rehashing of slot":     limit.ClassMoved,
		"CROSSSLOT Keys in request don't hash to the same slot":       limit.ClassWrongSlot,
		"CLUSTERDOWN The cluster is down":                             limit.ClassTopology,
		"MASTERDOWN Link with MASTER is down":                         limit.ClassTopology,
		"MISCONF Redis is configured to save RDB snapshots":           limit.ClassReadOnly,
		"NOAUTH Authentication required.":                             limit.ClassAuth,
		"ERR invalid password":                                        limit.ClassAuth,
		"ERR AUTH <password> called without any password configured.": limit.ClassAuth,
		// Redis 6.2 wraps the errors of commands within scripts.
		"ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -OOM command not allowed":                          limit.ClassOutOfMemory,
		"ERR Error running script (call to f_1): @user_script:9: @user_script: 9: -READONLY You can't":                               limit.ClassReadOnly,
		"ERR Error running script (call to f_1): @user_script:9: attempt to index":                                                   limit.ClassScript,
		"ERR Error running script (call to f_1): @user_script:9: The user executing the script can't run this command or subcommand": limit.ClassAuth,
		"ERR ACL failure in script: User weir has no permissions to run the 'set' command script: 01, on @user_script:9.":            limit.ClassAuth,
		"":     limit.ClassScript,
		"WHAT": limit.ClassScript,
	} {
		if got := classifyReply(text); got != want {
			t.Errorf("classifyReply(%q) = %v, want %v", text, got, want)
		}
	}
}
