package authority

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// Bounds of one flight (semantics S22). 64 keys keep the script's MGET and its
// working copies small, 256 checks keep the script below a millisecond.
const (
	maxKeys   = 64
	maxChecks = 256
)

// waiter is one ask on its way. It belongs to whoever claims it first: the
// flight that carries it, which then writes the verdicts, or the caller that
// stops waiting. Nobody writes a verdict without the claim.
type waiter struct {
	ask      *limit.Ask
	complete func(limit.Class) // called once, by the claimer, unless the caller claimed
	claimed  atomic.Bool
	sent     atomic.Bool // a call that carries it may have been written
	repeats  int         // late or stale answers so far; the flight's own
}

func (w *waiter) claim() bool { return w.claimed.CompareAndSwap(false, true) }

// expired says that nobody waits any more.
func (w *waiter) expired(now time.Time) bool {
	return w.claimed.Load() || !w.ask.Deadline.IsZero() && !now.Before(w.ask.Deadline)
}

// queue is what waits for the next flight: bounded by callers and by keys, and
// no key may fill more than a quarter of it, so that one hot tenant cannot
// keep everybody else of its primary out.
type queue struct {
	wake chan struct{} // holds a token when a worker may have something to take

	mu      sync.Mutex
	waiting []*waiter // a ring would save the copy in take; the slice is short
	keys    map[limit.Key]int
	total   int // keys, counted once for each check
	limit   int
	closed  bool
	swept   time.Time
}

func newQueue(limitCalls, workers int) *queue {
	return &queue{
		wake:  make(chan struct{}, workers),
		keys:  make(map[limit.Key]int),
		limit: limitCalls,
	}
}

// put adds w and reports whether there was room.
func (q *queue) put(w *waiter, now time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if !q.hasRoomLocked(w) && (!q.sweepLocked(now) || !q.hasRoomLocked(w)) {
		return false
	}
	q.countLocked(w, 1)
	q.waiting = append(q.waiting, w)
	q.signal()
	return true
}

func (q *queue) hasRoomLocked(w *waiter) bool {
	return len(q.waiting) < q.limit && q.total+len(w.ask.Checks) <= q.limit && !q.hogsLocked(w)
}

// sweepEvery is how often a full queue is searched for callers that have gone.
const sweepEvery = time.Millisecond

// sweepLocked drops those whose callers have gone, and says whether it did.
// While no flight takes anything, as when a store does not let connect, they
// would keep out those who still have time.
func (q *queue) sweepLocked(now time.Time) bool {
	if now.Sub(q.swept) < sweepEvery {
		return false
	}
	q.swept = now
	before := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		gone := w.claimed.Load()
		if gone {
			q.countLocked(w, -1)
		}
		return gone
	})
	return len(q.waiting) < before
}

// putBack puts what was late or stale before all others, in its order, since
// it has waited already. It makes room where there is none.
func (q *queue) putBack(again []*waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	for _, w := range again {
		q.countLocked(w, 1)
	}
	q.waiting = slices.Insert(q.waiting, 0, again...)
	q.signal()
	return true
}

// hogsLocked says that a key of w would take more than its share: a quarter,
// though a request that alone has more may wait alone.
func (q *queue) hogsLocked(w *waiter) bool {
	for i := range w.ask.Checks {
		k := w.ask.Checks[i].Key
		others := q.keys[k]
		if others == 0 {
			continue
		}
		own := 0
		for j := range w.ask.Checks {
			if w.ask.Checks[j].Key == k {
				own++
			}
		}
		if others+own > max(1, q.limit/4) {
			return true
		}
	}
	return false
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) countLocked(w *waiter, by int) {
	q.total += by * len(w.ask.Checks)
	for i := range w.ask.Checks {
		k := w.ask.Checks[i].Key
		if n := q.keys[k] + by; n == 0 {
			delete(q.keys, k)
		} else {
			q.keys[k] = n
		}
	}
}

// take moves what fits into one flight to dst, oldest first, and drops what
// has expired (to gone). Both slices are returned.
func (q *queue) take(now time.Time, dst, gone []*waiter, distinct map[limit.Key]struct{}) (flight, dropped []*waiter) {
	clear(distinct)
	q.mu.Lock()
	defer q.mu.Unlock()
	checks, n := 0, 0
	for ; n < len(q.waiting); n++ {
		w := q.waiting[n]
		if w.expired(now) {
			q.countLocked(w, -1)
			gone = append(gone, w)
			continue
		}
		if checks+len(w.ask.Checks) > maxChecks {
			break
		}
		fresh := 0
		for i := range w.ask.Checks {
			if _, ok := distinct[w.ask.Checks[i].Key]; !ok {
				fresh++
			}
		}
		if len(distinct)+fresh > maxKeys {
			break
		}
		for i := range w.ask.Checks {
			distinct[w.ask.Checks[i].Key] = struct{}{}
		}
		checks += len(w.ask.Checks)
		q.countLocked(w, -1)
		dst = append(dst, w)
	}
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	if rest > 0 {
		q.signal()
	}
	return dst, gone
}

// length is the number of waiting asks.
func (q *queue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// close refuses everything from now on and returns what still waited.
func (q *queue) close() []*waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	left := q.waiting
	q.waiting, q.closed = nil, true
	q.keys, q.total = make(map[limit.Key]int), 0
	return left
}

// open takes asks again after a close.
func (q *queue) open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = false
}
