package authority

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// TestSlowReplyIsAnAnswer: only its callers' deadline ends a call, however short an attempt to connect may be.
func TestSlowReplyIsAnAnswer(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	const dial = 20 * time.Millisecond
	g := run(t, p.url, func(c *Config) { c.DialTimeout = dial })
	g.wantRecovery(t) // Busy cores may need a few dials.
	p.setOnReply(func(b []byte) ([]byte, bool) {
		time.Sleep(5 * dial) // Nothing waits for this: it is the reply that is slow.
		return b, true
	})
	before := used(t, s)
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Errorf("verdict %+v, want an answer of the store", v)
	}
	if got := used(t, s) - before; got != 1 {
		t.Errorf("%d hits are stored, want 1", got)
	}
}

// TestScriptIsLoadedAfterTheLastRepeat: a store that restarts refuses for a while and then lacks the script. To load
// it is no repeat of a failure, so it does not use up the repeats.
func TestScriptIsLoadedAfterTheLastRepeat(t *testing.T) {
	s := redistest.Start(t)
	p := newProxy(t, s)
	g := run(t, p.url)
	g.wantRecovery(t)
	s.MustDo(t, "SCRIPT", "FLUSH")
	var refusals atomic.Int64
	p.setOnReply(func(b []byte) ([]byte, bool) {
		if refusals.Add(1) <= maxRepeats {
			return []byte("-LOADING Redis is loading the dataset in memory\r\n"), true
		}
		return b, true
	})
	before := used(t, s)
	if v := g.spend(patience); v.Outcome != limit.Allow {
		t.Errorf("verdict %+v, want an answer of the store", v)
	}
	if got := used(t, s) - before; got != 1 {
		t.Errorf("%d hits are stored, want 1", got)
	}
	g.wantErrors(t, nil)
}
