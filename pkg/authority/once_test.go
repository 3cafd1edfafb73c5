package authority

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// Semantics S23 and S25: a debit is sent once, and never for somebody who has
// gone.

// TestLostReplyIsSentOnce: the reply is lost after the execution. The debit
// stands, nobody repeats it, and it is counted as ambiguous (failure F11).
func TestLostReplyIsSentOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		reply func([]byte) ([]byte, bool)
		want  limit.Class
	}{
		{"the connection breaks", func([]byte) ([]byte, bool) { return nil, false }, limit.ClassConnection},
		{"the connection breaks within the reply", func(b []byte) ([]byte, bool) { return b[:len(b)-3], false }, limit.ClassConnection},
		{"nothing comes", func([]byte) ([]byte, bool) { return nil, true }, limit.ClassTimeout},
		{"another reply comes", func([]byte) ([]byte, bool) { return []byte("$2\r\n\x91\x01\r\n"), true }, limit.ClassBadReply},
		{"an integer comes", func([]byte) ([]byte, bool) { return []byte(":1\r\n"), true }, limit.ClassBadReply},
		{"no Redis answers", func([]byte) ([]byte, bool) { return []byte("HTTP/1.1 200 OK\r\n"), false }, limit.ClassBadReply},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := redistest.Start(t)
			p := newProxy(t, s)
			g := run(t, p.url)
			if v := g.spend(patience); v.Outcome != limit.Allow {
				t.Fatalf("before the fault: %+v", v)
			}
			calls := p.calls.Load() // the first was answered with NOSCRIPT
			p.setOnReply(c.reply)
			within := patience
			if c.want == limit.ClassTimeout {
				within = 50 * time.Millisecond
			}
			if v := g.spend(within); v != class(c.want) {
				t.Errorf("verdict %+v, want class %v", v, c.want)
			}
			if got := p.calls.Load() - calls; got != 1 {
				t.Errorf("the debit was sent %d times, want once", got)
			}
			if got := used(t, s); got != 2 {
				t.Errorf("%d hits are stored, want 2: the second was executed", got)
			}
			g.wantErrors(t, map[limit.Class]float64{c.want: 1})
			if got := g.counter(t, "weir_authority_ambiguous_total"); got != 1 {
				t.Errorf("ambiguous = %v, want 1", got)
			}
			p.onReply.Store(nil)
			g.wantRecovery(t)
			if got := used(t, s); got != 3 {
				t.Errorf("%d hits are stored after the recovery, want 3", got)
			}
		})
	}
}

// TestNothingIsDebitedAfterTheDeadline stalls the store. What was written to it
// by then is executed when it resumes, and must change nothing.
func TestNothingIsDebitedAfterTheDeadline(t *testing.T) {
	s := redistest.Start(t)
	g := run(t, s.URL())
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Fatalf("before the stall: %+v", v)
	}
	calls := evalshaCalls(t, s)
	s.Pause(t)
	for i := range 3 {
		v := g.spend(200 * time.Millisecond)
		if v.Outcome != limit.Undecided || v.Class == limit.ClassNone {
			t.Errorf("call %d of a stalled store: %+v, want a class", i, v)
		}
	}
	// At most one call for each connection that was there before the stall.
	written := g.counter(t, "weir_authority_errors_total", "timeout")
	if written < 1 || written > flights {
		t.Errorf("%v calls are counted as time-outs, want those that were written, at most %d", written, flights)
	}
	s.Resume(t)
	eventually(t, "the stalled calls are executed", func() bool { return evalshaCalls(t, s) >= calls+int(written) })
	if got := used(t, s); got != 1 {
		t.Errorf("%d hits are stored, want 1: those who have gone take nothing", got)
	}
	g.wantRecovery(t)
	if got := used(t, s); got != 2 {
		t.Errorf("%d hits are stored after the recovery, want 2", got)
	}
}

// TestNothingIsSentForWhoHasGone: a caller gives up while its flight waits for
// a connection. It hears that nothing was sent, so nothing may be debited.
func TestNothingIsSentForWhoHasGone(t *testing.T) {
	s := redistest.Start(t)
	s.MustDo(t, "SCRIPT", "LOAD", debitScript) // or the first call would change nothing
	hold := make(chan struct{})
	held := make(chan struct{}, 8)
	url := listen(t, func(c net.Conn) {
		held <- struct{}{}
		<-hold
		pipe(c, s.Socket())
	})
	g := run(t, url)
	ctx, cancel := context.WithCancel(context.Background())
	gone := &limit.Ask{Checks: one(take(keyA, weekly, 1)), Deadline: time.Now().Add(patience)}
	left := make(chan struct{})
	go func() {
		defer close(left)
		g.Debit(ctx, gone)
	}()
	<-held // Run's own connection
	<-held // that of the flight
	cancel()
	<-left
	if v := gone.Checks[0].Verdict; v != class(limit.ClassExpired) {
		t.Errorf("verdict of who left before the send: %+v, want class %v", v, limit.ClassExpired)
	}
	close(hold)
	g.wantRecovery(t)
	eventually(t, "the flight of who has gone is over", func() bool {
		return g.counter(t, "weir_authority_call_seconds") >= 2
	})
	if got := used(t, s); got != 1 {
		t.Errorf("%d hits are stored, want 1: that of who came after", got)
	}
	g.wantErrors(t, map[limit.Class]float64{limit.ClassExpired: 1})
}

// TestFlushesHealUnnoticed: a store that loses its scripts, or all its data,
// answers every call.
func TestFlushesHealUnnoticed(t *testing.T) {
	s := redistest.Start(t)
	g := run(t, s.URL())
	var served atomic.Int64
	stop := load(8, func() bool {
		if v := g.spend(patience); v.Outcome != limit.Allow {
			t.Errorf("verdict %+v, want it allowed", v)
			return false
		}
		served.Add(1)
		return true
	})
	const flushes = 10
	for i := range flushes {
		from := served.Load()
		eventually(t, "calls are served", func() bool { return served.Load() > from+50 || t.Failed() })
		if i%2 == 0 {
			s.MustDo(t, "SCRIPT", "FLUSH")
		} else {
			s.MustDo(t, "FLUSHALL")
		}
	}
	from := served.Load()
	eventually(t, "calls are served", func() bool { return served.Load() > from+50 || t.Failed() })
	stop()
	if got := g.counter(t, "weir_authority_script_loads_total"); got < 2 || got > flushes+1 {
		t.Errorf("the script was loaded %v times, want once at first and once for each flush of scripts", got)
	}
	g.wantErrors(t, nil)
}

// TestRestartHeals: a store that is killed and comes back without its data or
// scripts is used again by itself, and no debit was sent twice: it holds no
// more than was asked of it since.
func TestRestartHeals(t *testing.T) {
	s := redistest.Start(t)
	g := run(t, s.URL())
	var asked atomic.Int64
	stop := load(8, func() bool {
		asked.Add(1)
		switch v := g.spend(100 * time.Millisecond); v.Class {
		case limit.ClassNone, limit.ClassRefused, limit.ClassConnection, limit.ClassTimeout, limit.ClassExpired, limit.ClassLate:
		default:
			t.Errorf("class %v of a store that restarts", v.Class)
		}
		return true
	})
	g.wantRecovery(t)
	s.Kill(t)
	eventually(t, "the loss is noticed", func() bool { return g.counter(t, "weir_authority_errors_total") > 0 })
	before := asked.Load()
	s.Restart(t)
	g.wantRecovery(t)
	stop()
	if got, most := used(t, s), asked.Load()-before+8+1; got > most {
		t.Errorf("%d hits are stored of %d that were asked since the restart", got, most)
	}
}

// setClock moves the store's clock and waits until it shows.
func setClock(t *testing.T, s *redistest.Server, by time.Duration) {
	t.Helper()
	s.SetClockOffset(by)
	eventually(t, "the store's clock has moved", func() bool {
		return (time.Until(s.Time(t)) - by).Abs() < time.Minute
	})
}

// TestStepsOfTheStoresClockAreMended: a step makes the first not-after wrong.
// Forward it is too early: the answer is late, the offset is mended and the call
// repeated. Back, the offset falls with the first answer.
func TestStepsOfTheStoresClockAreMended(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	g := run(t, s.URL())
	for i, step := range []time.Duration{0, time.Hour, -time.Hour, 2 * time.Hour} {
		setClock(t, s, step)
		for range 3 {
			if v := g.spend(patience); v.Outcome != limit.Allow {
				t.Errorf("clock at %v: verdict %+v, want it allowed", step, v)
			}
		}
		if got := used(t, s); got != int64(3*(i+1)) {
			t.Errorf("clock at %v: %d hits are stored, want %d", step, got, 3*(i+1))
		}
	}
	g.wantErrors(t, nil)
}

// TestStaleCalendarIsSentAgain: boundaries around a wrong idea of the time are
// answered with stale, and sent again around the right one.
func TestStaleCalendarIsSentAgain(t *testing.T) {
	s := redistest.Start(t, redistest.WithClock())
	g := run(t, s.URL())
	daily := edit(fixed(10, 86_400_000), func(p *limit.Params) {
		p.CalendarCode = 3
		p.Bounds = func(now int64) [3]int64 {
			begin := now - now%86_400_000
			return [3]int64{begin, begin + 86_400_000, begin + 2*86_400_000}
		}
	})
	for i, step := range []time.Duration{0, 30 * 24 * time.Hour} {
		setClock(t, s, step)
		a := g.ask(patience, take(keyB, daily, 1))
		if v := a.Checks[0].Verdict; v.Outcome != limit.Allow || v.Remaining != 9 {
			t.Errorf("call %d: verdict %+v, want it allowed in a fresh window", i, v)
		}
	}
	// Without a deadline nothing is late, so it is the calendar alone that is mended.
	setClock(t, s, -30*24*time.Hour)
	a := &limit.Ask{Checks: one(take(keyC, daily, 1))}
	g.Debit(context.Background(), a)
	if v := a.Checks[0].Verdict; v.Outcome != limit.Allow {
		t.Errorf("a calendar far ahead: verdict %+v, want it allowed", v)
	}
	g.wantErrors(t, nil)
}
