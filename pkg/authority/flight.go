package authority

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-rl/weir/pkg/limit"
)

// Repeats of one call within its deadline, and how long to wait before each:
// enough to outlive a re-dial or an election's edge, few enough that a dead
// store costs little. A lost script is loaded and counted apart.
const (
	maxRepeats = 3
	firstPause = time.Millisecond
	noDeadline = time.Second // the longest wait of an ask without a deadline
	maxLate    = 2           // late answers to one ask
	maxStale   = 1           // stale ones: the boundaries are then those around the store's time (semantics S16)
)

// flight carries batches, one at a time. It is owned by one goroutine.
type flight struct {
	r        *Redis
	args     *arguments
	batch    []*waiter
	gone     []*waiter
	distinct map[limit.Key]struct{}
	verdicts []limit.Verdict
}

func newFlight(r *Redis) *flight {
	return &flight{r: r, args: newArguments(r.prefix), distinct: make(map[limit.Key]struct{}, maxKeys)}
}

// run takes what waits until ctx ends.
func (f *flight) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.r.queue.wake:
		}
		for ctx.Err() == nil {
			f.batch, f.gone = f.r.queue.take(time.Now(), f.batch[:0], f.gone[:0], f.distinct)
			for _, w := range f.gone {
				f.r.fail(w, limit.ClassExpired)
			}
			clear(f.gone) // or they would stay alive until as many expire again
			if len(f.batch) == 0 {
				break
			}
			f.carry()
			clear(f.batch)
		}
	}
}

// carry sends the batch until it is answered, or may not be repeated, or
// nobody waits any more.
func (f *flight) carry() {
	pause, repeats, losses := firstPause, 0, 0
	for {
		deadline := f.deadline()
		class := f.send(deadline)
		switch {
		case class == limit.ClassNone:
			return
		case class == classNoScript && losses < maxRepeats:
			losses++ // it is loaded now, so there is nothing to wait for
		case class == classNoScript:
			f.dropExpired()
			f.failAll(limit.ClassScript)
			return
		case class.Repeatable() && repeats < maxRepeats && time.Until(deadline) >= pause:
			time.Sleep(pause)
			pause *= 2
			repeats++
		default:
			f.failAll(class)
			return
		}
		f.dropExpired()
		if len(f.batch) == 0 {
			return
		}
		f.r.metrics.repeats.Inc()
	}
}

// deadline is when the last ask of the batch stops waiting.
func (f *flight) deadline() time.Time {
	var last time.Time
	for _, w := range f.batch {
		last = later(last, w.until())
	}
	return last
}

// until is when the ask stops waiting.
func (w *waiter) until() time.Time {
	if w.ask.Deadline.IsZero() {
		return time.Now().Add(noDeadline)
	}
	return w.ask.Deadline
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// dropExpired leaves those who still wait. Nothing of the call before was
// executed.
func (f *flight) dropExpired() {
	now, n := time.Now(), 0
	for _, w := range f.batch {
		w.sent.Store(false)
		if w.expired(now) {
			f.r.fail(w, limit.ClassExpired)
			continue
		}
		f.batch[n] = w
		n++
	}
	clear(f.batch[n:])
	f.batch = f.batch[:n]
}

func (f *flight) failAll(class limit.Class) {
	for _, w := range f.batch {
		f.r.fail(w, class)
	}
}

// send makes one call and, when it is answered, completes the batch. It
// returns ClassNone then, and otherwise what kept the call from its answer.
func (f *flight) send(deadline time.Time) limit.Class {
	now := time.Now()
	if class := f.r.reach.barred(now); class != limit.ClassNone {
		return class
	}
	base, cancel := context.WithDeadline(context.Background(), later(deadline, now.Add(f.r.dialTimeout)))
	defer cancel()
	ctx := &callContext{Context: base}
	cmd := &debitCmd{Cmd: redis.NewCmd(ctx), flight: f, ctx: ctx}
	began := f.r.local()
	reply, err := f.process(ctx, cmd)
	received := f.r.local()
	f.r.metrics.callSeconds.Observe((received - began).Seconds())
	if err == nil {
		var now, foreign int64
		if now, foreign, f.verdicts, err = decodeReply(reply, cmd.checks, f.verdicts); err == nil {
			f.r.offset.observe(now, cmd.sent, received)
			f.r.metrics.foreign.Add(float64(foreign))
			f.r.reach.reached()
			f.r.noteState(limit.ClassNone, nil)
			f.deliver()
			return limit.ClassNone
		}
	}
	class := classify(err, cmd.args != nil)
	if class == classNoScript {
		if err = f.r.loadScript(base, cmd.loads); err == nil {
			return classNoScript
		}
		class = classify(err, false)
	}
	f.r.noteReach(class, err, cmd.args != nil)
	f.r.noteState(class, err)
	return class
}

func (f *flight) process(ctx context.Context, cmd *debitCmd) (string, error) {
	if err := f.r.client.Process(ctx, cmd); err != nil {
		return "", err
	}
	reply, err := cmd.Text()
	if err != nil {
		return "", fmt.Errorf("%w: %w", errReply, err)
	}
	return reply, nil
}

// deliver gives each ask its verdicts. An ask that came late or stale joins
// the next flight while it has time left.
func (f *flight) deliver() {
	now, at := time.Now(), 0
	var again []*waiter
	for _, w := range f.batch {
		verdicts := f.verdicts[at : at+len(w.ask.Checks)]
		at += len(verdicts)
		class := verdicts[0].Class
		if class == limit.ClassLate || class == limit.ClassStale {
			w.sent.Store(false) // nothing of it was executed
			most := maxLate
			if class == limit.ClassStale {
				most = maxStale
			}
			w.repeats++
			if w.repeats > most || w.expired(now) {
				f.r.fail(w, class)
			} else {
				again = append(again, w)
			}
			continue
		}
		if !w.claim() {
			continue
		}
		class = limit.ClassNone
		for i, v := range verdicts {
			w.ask.Checks[i].Verdict = v
			if v.Class != limit.ClassNone {
				class = v.Class
			}
		}
		if class != limit.ClassNone {
			f.r.metrics.failed(class, true)
		}
		w.complete(class)
	}
	if len(again) > 0 && !f.r.queue.putBack(again) {
		for _, w := range again {
			f.r.fail(w, limit.ClassLate)
		}
	}
}

// debitCmd is the script call. It encodes itself when go-redis asks for its
// arguments, which is when it writes them to a live connection: so the
// not-after is made from the clock of the node that will run it, and what was
// never asked for was never sent.
type debitCmd struct {
	*redis.Cmd
	flight *flight
	ctx    *callContext
	args   []any
	checks int
	sent   time.Duration // local time of the write
	loads  int64         // script loads before the write
}

// NoRetry keeps go-redis from sending a debit twice, whatever its options.
func (c *debitCmd) NoRetry() bool { return true }

// Clone returns c itself: a copy would be a second debit.
func (c *debitCmd) Clone() redis.Cmder { return c }

// Name, FullName and String must not encode the call.
func (c *debitCmd) Name() string     { return "evalsha" }
func (c *debitCmd) FullName() string { return "evalsha" }
func (c *debitCmd) String() string   { return "evalsha " + debitSHA }

// Args encodes the batch, once.
func (c *debitCmd) Args() []any {
	if c.args != nil {
		return c.args
	}
	f := c.flight
	c.loads = f.r.loads.Load()
	c.sent = f.r.local()
	offset, _ := f.r.offset.estimate(c.sent)
	f.args.reset()
	var last time.Time // of those who still wait
	for _, w := range f.batch {
		// In this order: who leaves without seeing sent was seen to have left,
		// and so goes along only to be answered late.
		w.sent.Store(true)
		notAfter := int64(0)
		if !w.claimed.Load() {
			notAfter = f.r.notAfter(w.ask, offset)
			last = later(last, w.until())
		}
		f.args.add(w.ask, notAfter)
		c.checks += len(w.ask.Checks)
	}
	if !last.IsZero() {
		c.ctx.written(last)
	}
	c.args = f.args.build(len(f.batch), c.sent.Milliseconds()+offset)
	f.r.metrics.batchKeys.Observe(float64(len(f.args.keys)))
	f.r.metrics.batchChecks.Observe(float64(c.checks))
	return c.args
}

// notAfter is the ask's deadline in the store's clock, one millisecond early
// because that clock is read in whole milliseconds.
func (r *Redis) notAfter(ask *limit.Ask, offset int64) int64 {
	if ask.Deadline.IsZero() {
		return limit.Exact - 1
	}
	return ask.Deadline.Sub(r.start).Milliseconds() + offset - 1
}

// loadScript loads the script unless somebody did since seen loads. A second
// caller waits for the first one, no longer than that one's ctx.
func (r *Redis) loadScript(ctx context.Context, seen int64) error {
	r.loading.Lock()
	defer r.loading.Unlock()
	if r.loads.Load() != seen {
		return nil
	}
	if err := r.client.ScriptLoad(ctx, debitScript).Err(); err != nil {
		return fmt.Errorf("script load: %w", err)
	}
	r.loads.Add(1)
	r.metrics.scriptLoads.Inc()
	return nil
}

// noteReach notes whether the store can be reached. An error that it answered
// with shows that it can; a call that was not written, or whose connection
// broke, that it cannot. A reply that is merely late says nothing.
func (r *Redis) noteReach(class limit.Class, err error, sent bool) {
	var answered redis.Error
	switch {
	case !sent, class == limit.ClassConnection, class == limit.ClassBadReply:
		r.reach.failed(time.Now(), class)
	case errors.As(err, &answered):
		r.reach.reached()
	}
}

// noteState logs when the store stops or starts to answer, or fails otherwise
// than before; never for every call, and of a store that does so all the time
// only now and then.
func (r *Redis) noteState(class limit.Class, err error) {
	r.stateMu.Lock()
	changed := r.failing != class && r.logs.Allow()
	if changed {
		r.failing = class
	}
	r.stateMu.Unlock()
	switch {
	case !changed:
	case class == limit.ClassNone:
		r.log.Info("store answers")
	default:
		r.log.Warn("store does not answer", "class", class.String(), "cause", err.Error())
	}
}
