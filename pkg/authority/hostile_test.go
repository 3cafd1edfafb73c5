package authority

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// delayed passes bytes on, each after that time, without slowing the flow.
func delayed(dst io.Writer, src io.Reader, by time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1024)
	go func() {
		defer close(chunks)
		buf := make([]byte, 64<<10)
		for {
			n, err := src.Read(buf)
			if n > 0 {
				chunks <- chunk{time.Now().Add(by), bytes.Clone(buf[:n])}
			}
			if err != nil {
				return
			}
		}
	}()
	for c := range chunks {
		time.Sleep(time.Until(c.due)) // the distance that this stands for
		if _, err := dst.Write(c.data); err != nil {
			for range chunks { // until the reader notices
			}
		}
	}
}

// TestFarStoreIsReached: a store that answers a debit in time, but not the
// greeting of a new connection and a debit after it.
func TestFarStoreIsReached(t *testing.T) {
	s := redistest.Start(t)
	const oneWay, budget = 60 * time.Millisecond, 200 * time.Millisecond
	url := listen(t, func(c net.Conn) {
		up, err := net.Dial("unix", s.Socket())
		if err != nil {
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			delayed(up, c, oneWay)
			_ = up.Close()
		})
		delayed(c, up, oneWay)
		_ = c.Close()
		wg.Wait()
	})
	g := run(t, url)
	eventually(t, "a debit is answered", func() bool { return g.spend(budget).Outcome == limit.Allow })
}

// TestRepliesOfAbsurdSizeAreRefused: whatever a store says, the process lives,
// and makes no room for it.
func TestRepliesOfAbsurdSizeAreRefused(t *testing.T) {
	s := redistest.Start(t)
	for _, reply := range []string{
		"$65537\r\n", "$9223372036854775807\r\n", "$1099511627776\r\n", "$99999999999999999999999\r\n",
		"*9223372036854775800\r\n", "=9223372036854775800\r\n",
		"%9223372036854775800\r\n", ">9223372036854775800\r\n", "|9223372036854775800\r\n", "~9223372036854775800\r\n",
	} {
		t.Run(strings.TrimSpace(reply), func(t *testing.T) {
			p := newProxy(t, s)
			g := run(t, p.url)
			g.wantRecovery(t)
			p.setOnReply(func([]byte) ([]byte, bool) { return []byte(reply), true })
			if v := g.spend(patience); v != class(limit.ClassBadReply) {
				t.Errorf("verdict %+v, want class %v", v, limit.ClassBadReply)
			}
			p.onReply.Store(nil)
			g.wantRecovery(t)
		})
	}
}

// TestGreetingsOfAbsurdSizeAreRefused: so does one that never was a Redis.
func TestGreetingsOfAbsurdSizeAreRefused(t *testing.T) {
	g := run(t, listen(t, func(c net.Conn) {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			if _, err := io.WriteString(c, "*9223372036854775800\r\n"); err != nil {
				return
			}
		}
	}))
	if v := g.spend(patience); v != class(limit.ClassBadReply) {
		t.Errorf("verdict %+v, want class %v", v, limit.ClassBadReply)
	}
}

// TestEndlessRepliesAreRefused: neither a line that never ends nor lists in
// lists take memory without bound.
func TestEndlessRepliesAreRefused(t *testing.T) {
	for name, text := range map[string]string{"line": "x", "lists": "*1\r\n", "errors": "-"} {
		t.Run(name, func(t *testing.T) {
			g := run(t, listen(t, func(c net.Conn) {
				if _, err := c.Read(make([]byte, 4096)); err != nil {
					return
				}
				if name == "errors" {
					_, _ = io.WriteString(c, "-")
				}
				for b := bytes.Repeat([]byte(text), 4096); ; {
					if _, err := c.Write(b); err != nil {
						return
					}
				}
			}))
			// go-redis hides what it met in a nested reply, so that it is refused.
			if v := g.spend(patience); v != class(limit.ClassBadReply) && v != class(limit.ClassRefused) {
				t.Errorf("verdict %+v, want class %v or %v", v, limit.ClassBadReply, limit.ClassRefused)
			}
		})
	}
}

// TestStoreInTroubleIsNotStormed: who asks does not decide how often a store
// that accepts connections and refuses their owners is knocked at.
func TestStoreInTroubleIsNotStormed(t *testing.T) {
	for _, c := range []struct {
		greeting string
		want     limit.Class
	}{
		{"-WRONGPASS invalid username-password pair or user is disabled.\r\n", limit.ClassAuth},
		{"-ERR max number of clients reached\r\n", limit.ClassRefused},
		{"", limit.ClassRefused},
	} {
		t.Run(strings.TrimSpace(c.greeting), func(t *testing.T) {
			var dials atomic.Int64
			url := listen(t, func(conn net.Conn) {
				dials.Add(1)
				from := bufio.NewReader(conn)
				for ok := true; ok; ok = c.want == limit.ClassAuth {
					if _, _, err := readCommand(from); err != nil {
						return
					}
					_, _ = io.WriteString(conn, c.greeting)
				}
			})
			g := run(t, strings.Replace(url, "redis://", "redis://:password@", 1))
			began := time.Now()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 50 {
						if v := g.spend(patience); v != class(c.want) {
							t.Errorf("verdict %+v, want class %v", v, c.want)
							return
						}
					}
				})
			}
			wg.Wait()
			// Pauses that double up to the last one, each up to a quarter shorter,
			// and after each of them every flight may try.
			most := flights * (12 + int64(time.Since(began)/(lastRedial*3/4)))
			if got := dials.Load(); got == 0 || got > most {
				t.Errorf("%d connections for 400 requests, want 1 to %d", got, most)
			}
		})
	}
}

// TestFlappingStoreLogsLittle: a store that answers every other call is no
// reason for a line each.
func TestFlappingStoreLogsLittle(t *testing.T) {
	var out bytes.Buffer
	r, err := New(Config{URL: "redis://127.0.0.1:1"},
		Deps{Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.logs.SetLimit(0)
	for range 200 {
		r.noteState(limit.ClassTimeout, io.EOF)
		r.noteState(limit.ClassNone, nil)
	}
	if got := strings.Count(out.String(), "\n"); got != logBurst {
		t.Errorf("%d lines of 400 changes, want %d", got, logBurst)
	}
	// What was not said is said later, if it is still so.
	r.logs.SetLimit(rate.Inf)
	out.Reset()
	r.noteState(limit.ClassTimeout, io.EOF)
	r.noteState(limit.ClassTimeout, io.EOF)
	if got := strings.Count(out.String(), "store does not answer"); got != 1 {
		t.Errorf("%d lines of a lasting state, want 1: %s", got, out.String())
	}
}

// TestPutBackKeepsTheOrder: what was late goes first, and among itself as before.
func TestPutBackKeepsTheOrder(t *testing.T) {
	q := newQueue(16, flights)
	var late []*waiter
	for i := range 3 {
		late = append(late, waiting(i, 1, true))
	}
	last := waiting(3, 1, true)
	if !q.put(last, time.Now()) || !q.putBack(late) {
		t.Fatal("the queue is full")
	}
	batch, _ := q.take(time.Now(), nil, nil, map[limit.Key]struct{}{})
	if want := append(late, last); !slices.Equal(batch, want) {
		t.Errorf("taken as %v, want %v", batch, want)
	}
	if q.total != 0 || len(q.keys) != 0 {
		t.Errorf("an empty queue counts %d keys in all and %d of its own", q.total, len(q.keys))
	}
}

// TestWhoGivesUpIsNoTimeout: Envoy cancels a call when its client goes. That is
// no sign of a store in trouble, and the debit counts as what it was (S10).
func TestWhoGivesUpIsNoTimeout(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	g := run(t, p.url)
	g.wantRecovery(t)
	sent, answer := make(chan struct{}), make(chan struct{})
	p.setOnReply(func(b []byte) ([]byte, bool) {
		close(sent)
		<-answer
		return b, true
	})
	ctx, cancel := context.WithCancel(context.Background())
	ask := &limit.Ask{Checks: one(take(keyA, weekly, 1)), Deadline: time.Now().Add(patience)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.Debit(ctx, ask)
	}()
	<-sent
	cancel()
	close(answer)
	<-done
	if v := ask.Checks[0].Verdict; v.Outcome != limit.Allow {
		t.Errorf("verdict %+v, want what the store answered", v)
	}
	if got := used(t, s); got != 2 {
		t.Errorf("%d hits are stored, want 2", got)
	}
	g.wantErrors(t, nil)
}

// TestWhoHasGoneKeepsNobodyOut: while flights wait for a connection nothing is
// taken, and the queue would fill with callers that have left.
func TestWhoHasGoneKeepsNobodyOut(t *testing.T) {
	for name, keys := range map[string]int{"the queue": 16, "a key": 1} {
		t.Run(name, func(t *testing.T) {
			q := newQueue(16, flights)
			var left []*waiter
			for i := range 16 {
				if w := waiting(i%keys, 1, true); q.put(w, time.Now()) {
					left = append(left, w)
				}
			}
			if q.put(waiting(0, 1, true), time.Now()) {
				t.Fatal("there is room")
			}
			for _, w := range left {
				w.claim()
			}
			q.swept = time.Time{}
			stays := waiting(0, 1, true)
			if !q.put(stays, time.Now()) {
				t.Fatal("a caller was refused for the sake of those who have gone")
			}
			if got := q.length(); got != 1 || q.total != 1 || len(q.keys) != 1 {
				t.Errorf("%d wait with %d keys, %d of them distinct; want one", got, q.total, len(q.keys))
			}
		})
	}
}

// TestOwnStopIsNoFailure: a run that ends while it connects says nothing about
// the store.
func TestOwnStopIsNoFailure(t *testing.T) {
	url := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }) // never answers
	var out bytes.Buffer
	r, err := New(Config{URL: url, DialTimeout: patience},
		Deps{Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(&out, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.Run(ctx); err != nil {
		t.Error(err)
	}
	if out.Len() > 0 || r.reach.lost() {
		t.Errorf("a stopped run found the store lost (%t) and logged %q, want neither", r.reach.lost(), out.String())
	}
}
