package authority

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// TestEveryDebitIsAccountedFor is conservation amid trouble: callers with too
// little time, callers that leave, replies that are lost, connections that
// break, scripts that vanish. In the end the store must hold what was admitted,
// and besides no more than what is counted as ambiguous: whoever heard another
// class was not debited. Every request is decided whole or not at all.
func TestEveryDebitIsAccountedFor(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	g := run(t, p.url)
	g.wantRecovery(t)
	s.MustDo(t, "DEL", keyName(keyA))
	rnd := rand.New(rand.NewPCG(seed(t), 0)) //nolint:gosec // reproducible, not secret
	var mu sync.Mutex
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	p.setOnReply(func(reply []byte) ([]byte, bool) {
		switch roll(40) {
		case 0:
			return nil, false // lost, and the connection with it
		case 1:
			return nil, true // lost
		case 2:
			return reply[:len(reply)/2], false
		case 3:
			return []byte("-BUSY after all\r\n"), true // which no Redis says after the execution
		}
		return reply, true
	})
	var (
		wg       sync.WaitGroup
		admitted atomic.Int64
		lost     atomic.Int64 // may have been debited, by its class
		lies     atomic.Int64 // as above, where the proxy lied
		answered atomic.Int64
		classes  [256]atomic.Int64
	)
	rounds := 300
	if testing.Short() {
		rounds = 100
	}
	for range 32 {
		wg.Go(func() {
			for range rounds {
				a := &limit.Ask{Checks: []limit.Check{take(keyA, weekly, 1), take(keyB, weekly, 1)}}
				a.Deadline = time.Now().Add(time.Duration(roll(4000)) * time.Microsecond)
				ctx, cancel := context.WithCancel(context.Background())
				if roll(4) == 0 {
					time.AfterFunc(time.Duration(roll(2000))*time.Microsecond, cancel)
				}
				g.Debit(ctx, a)
				cancel()
				answered.Add(1)
				v := verdicts(a)
				if v[0].Outcome != v[1].Outcome || v[0].Class != v[1].Class {
					t.Errorf("verdicts %+v and %+v of one request", v[0], v[1])
				}
				classes[v[0].Class].Add(1)
				switch {
				case v[0].Outcome == limit.Allow:
					admitted.Add(1)
				case v[0].Class == limit.ClassNone:
					t.Errorf("verdict %+v, want allowed or a class", v[0])
				case v[0].Class == limit.ClassBusy:
					lies.Add(1)
				case v[0].Class.Ambiguous():
					lost.Add(1)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		wg.Wait()
	}()
	flushed := int64(0)
	eventually(t, "every caller is answered", func() bool {
		if n := answered.Load(); n > flushed+500 {
			flushed = n
			s.MustDo(t, "SCRIPT", "FLUSH")
		}
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	p.onReply.Store(nil)
	g.wantRecovery(t) // and what was on its way has ended
	stored := used(t, s) - 1
	if stored < admitted.Load() || stored > admitted.Load()+lost.Load()+lies.Load() {
		t.Errorf("%d hits are stored, want those admitted, %d, and at most the %d ambiguous ones and the %d that were lied to",
			stored, admitted.Load(), lost.Load(), lies.Load())
	}
	if admitted.Load() == 0 || lost.Load() == 0 || classes[limit.ClassExpired].Load() == 0 {
		t.Errorf("%d admitted, %d ambiguous, %d expired: there was no trouble", admitted.Load(), lost.Load(), classes[limit.ClassExpired].Load())
	}
	for _, c := range limit.Classes() {
		if n := classes[c].Load(); n > 0 {
			t.Logf("%v: %d", c, n)
		}
	}
}
