package authority

import (
	"math"
	"sync"
	"time"
)

// sampleLife is how long a sample of the store's clock counts in full.
const sampleLife = 10 * time.Second

// driftPPM is how fast the two clocks may drift apart, at most.
const driftPPM = 500

// clockOffset estimates a lower bound of store clock − local monotonic clock,
// in milliseconds (semantics S24). A deadline in local time plus a lower bound
// is never later than the same deadline in the store's time, so nothing is
// debited for a caller that has gone.
//
// Each sample is T − receive time, which errs only downwards, by the time that
// the reply travelled; so the largest of the last 10 s (kept as two spans of
// 10 s, so 10 to 20 s in fact) is the best one.
type clockOffset struct {
	mu        sync.Mutex
	known     bool
	spanStart time.Duration // local time at which the span at hand began
	cur, prev offsetSample
}

type offsetSample struct {
	value int64         // ms
	at    time.Duration // local time of the sample
}

func (s offsetSample) worth(now time.Duration) int64 {
	if s.value == math.MinInt64 {
		return s.value
	}
	if age := now - s.at; age > sampleLife {
		return s.value - age.Milliseconds()*driftPPM/1_000_000 - 1
	}
	return s.value
}

// observe takes one reading: the store's time in ms, and when, in local
// monotonic time, the question was sent and the answer received.
func (o *clockOffset) observe(store int64, sent, received time.Duration) {
	low := store - ceilMillis(received)
	high := store + 1 - sent.Milliseconds() // the store's time is cut to whole milliseconds
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known || high < o.estimateLocked(received) {
		// The first reading, a clock that stepped back, or another node.
		o.known = true
		o.spanStart = received
		o.cur = offsetSample{low, received}
		o.prev = offsetSample{value: math.MinInt64}
		return
	}
	if received-o.spanStart > sampleLife {
		o.prev, o.spanStart = o.cur, received
		o.cur = offsetSample{low, received}
		return
	}
	if low >= o.cur.worth(received) {
		o.cur = offsetSample{low, received}
	}
}

func (o *clockOffset) estimateLocked(now time.Duration) int64 {
	return max(o.cur.worth(now), o.prev.worth(now))
}

// estimate returns the offset at local time now, and false before any reading.
func (o *clockOffset) estimate(now time.Duration) (int64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.estimateLocked(now), o.known
}

func ceilMillis(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}
