package authority

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/weir-rl/weir/pkg/limit"
)

// The pause between attempts to reach a store that cannot be reached: from the
// first to the last, each at most twice the one before. The last one is about
// how long callers go on being refused after the store is back.
const (
	firstRedial = time.Millisecond
	lastRedial  = 500 * time.Millisecond
)

// reach spaces the attempts to reach a store. Connecting costs the store most
// when it is in trouble already: full of clients, starting, or refusing a
// password. Within a pause the last failure is everybody's answer.
type reach struct {
	mu    sync.Mutex
	until time.Time
	pause time.Duration // 0: the last attempt succeeded
	class limit.Class   // of the last failure
}

// barred returns the class of the last failure while its pause lasts, and
// otherwise ClassNone.
func (r *reach) barred(now time.Time) limit.Class {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Before(r.until) {
		return r.class
	}
	return limit.ClassNone
}

// failed notes a failed attempt. Of several at the same time one counts.
func (r *reach) failed(now time.Time, class limit.Class) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.class = class
	if now.Before(r.until) {
		return
	}
	r.pause = min(lastRedial, max(firstRedial, 2*r.pause))
	// Up to a quarter less, so that many sidecars do not knock together.
	r.until = now.Add(r.pause - rand.N(r.pause/4)) //nolint:gosec // spreads load, keeps no secret
}

// reached notes an answer of the store.
func (r *reach) reached() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pause, r.until = 0, time.Time{}
}

// lost says that the last attempt failed.
func (r *reach) lost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pause > 0
}

// callContext bounds one call in two parts: until the call is written, which
// can need a new connection, and from then on. A connection that is slow to
// make is finished for those who come later; if it were given up with the
// callers that met it first, a store that is far away, but near enough for a
// debit, could never be reached.
type callContext struct {
	context.Context // until the call is written

	mu    sync.Mutex
	reply time.Time // zero until then; guarded by mu
}

// Deadline is what go-redis asks for before each read and write.
func (c *callContext) Deadline() (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reply.IsZero() {
		return c.reply, true
	}
	return c.Context.Deadline()
}

// written bounds the wait for the reply.
func (c *callContext) written(reply time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reply = reply
}
