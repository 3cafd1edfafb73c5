package authority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/weir-rl/weir/pkg/limit"
)

// Defaults of Config.
const (
	DefaultQueueCalls  = 4096
	DefaultDialTimeout = 500 * time.Millisecond
)

// flights is the most script calls on their way to one primary. Two keep the
// store busy while a reply travels; more would only make batches smaller.
const flights = 2

// A store that comes and goes is logged at once for the first changes, and then
// at this pace.
const (
	logEvery = 10 * time.Second
	logBurst = 8
)

// Config says where the store is. It is fixed once New has taken it.
type Config struct {
	// URL is redis://[user:password@]host:port[/db] or
	// unix://[user:password@]/path[?db=n].
	URL string

	// KeyPrefix stands before every key, as it is.
	KeyPrefix string

	// QueueCalls bounds the waiting callers, and their keys. When it is full
	// a caller gets ClassOverloaded at once. 0 means DefaultQueueCalls. More
	// memory and longer waits against fewer refusals in a burst.
	QueueCalls int

	// DialTimeout bounds one attempt to connect, greeting included. 0 means
	// DefaultDialTimeout. Callers never wait longer than their own deadline.
	DialTimeout time.Duration
}

// Deps are what a Redis needs from its process.
type Deps struct {
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // required
	Now        func() time.Time      // wall clock, for the offset gauge only
}

// Redis is the authority in one Redis primary. Run must be running for Debit
// to be answered by the store.
type Redis struct {
	client  *redis.Client
	queue   *queue
	offset  clockOffset
	metrics *metrics
	log     *slog.Logger
	start   time.Time // local monotonic time is counted from here
	prefix  string
	reach   reach

	dialTimeout time.Duration

	loading sync.Mutex   // held while the script is being loaded
	loads   atomic.Int64 // successful script loads

	stateMu sync.Mutex
	failing limit.Class // last logged state; guarded by stateMu
	logs    *rate.Limiter
}

// parseURL checks a store URL and returns go-redis options for it. The error
// never shows a password.
func parseURL(raw string) (*redis.Options, error) {
	u, err := url.Parse(raw)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the text of the URL
		}
		return nil, fmt.Errorf("store url: %w; write redis://host:port/db or unix:///path", err)
	}
	switch u.Scheme {
	case "redis", "unix":
	case "rediss":
		return nil, errors.New("store url: scheme rediss (TLS) is not supported yet; use redis:// or unix://")
	default:
		return nil, fmt.Errorf("store url: scheme %q is none of redis, unix; write redis://host:port/db or unix:///path", u.Scheme)
	}
	for name := range u.Query() {
		if name != "db" {
			return nil, fmt.Errorf("store url: parameter %q is not known; remove it (only db is allowed)", name)
		}
	}
	opt, err := redis.ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("store url: %s; write redis://host:port/db or unix:///path", strings.TrimPrefix(err.Error(), "redis: "))
	}
	return opt, nil
}

// CheckURL reports what is wrong with a store URL, without showing a password.
func CheckURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// New returns the authority for cfg. It does not connect, Run does: an absent
// store never stops a start.
func New(cfg Config, deps Deps) (*Redis, error) {
	opt, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(cfg.KeyPrefix, "{}") {
		return nil, fmt.Errorf("key prefix %q has a brace, which would move keys to other cluster slots; remove it", cfg.KeyPrefix)
	}
	if cfg.QueueCalls <= 0 {
		cfg.QueueCalls = DefaultQueueCalls
	}
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = DefaultDialTimeout
	}
	log := deps.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	now := deps.Now
	if now == nil {
		now = time.Now
	}
	r := &Redis{
		queue:  newQueue(cfg.QueueCalls, flights),
		log:    log,
		start:  time.Now(),
		prefix: cfg.KeyPrefix,
		logs:   rate.NewLimiter(rate.Every(logEvery), logBurst),

		dialTimeout: cfg.DialTimeout,
	}
	r.metrics = newMetrics(deps.Registerer,
		func() float64 { return float64(r.queue.length()) },
		func() float64 {
			at := r.local()
			offset, known := r.offset.estimate(at)
			if !known {
				return 0
			}
			return (float64(offset) - float64(now().UnixMilli()) + float64(at.Milliseconds())) / 1000
		})
	quiet.Do(func() { redis.SetLogger(discard{}) })
	r.client = redis.NewClient(r.options(opt, cfg))
	return r, nil
}

// quiet silences go-redis, which has one logger for all clients and writes a
// line to stderr for each failed dial. Every failure reaches noteState, which
// logs changes only.
var quiet sync.Once

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// options makes go-redis do exactly one attempt inside the caller's deadline:
// it retries by default, and a repeated debit is a double debit.
func (r *Redis) options(opt *redis.Options, cfg Config) *redis.Options {
	opt.MaxRetries = -1
	opt.DialerRetries = 1
	opt.ContextTimeoutEnabled = true
	opt.DialTimeout = cfg.DialTimeout
	// The deadlines of the calls count, which are monotonic; go-redis's own are
	// of the wall clock.
	opt.ReadTimeout, opt.WriteTimeout = -1, -1
	opt.Dialer = guarded(redis.NewDialer(opt))
	opt.PoolSize = flights
	opt.MaxActiveConns = flights + 1 // one more for a script load beside two flights
	opt.PoolTimeout = cfg.DialTimeout
	opt.ReadBufferSize, opt.WriteBufferSize = 16<<10, 16<<10
	opt.Protocol = 2
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opt.OnConnect = func(ctx context.Context, cn *redis.Conn) error {
		return r.readClock(ctx, cn)
	}
	return opt
}

// readClock takes a reading of the store's clock: on every new connection,
// before it carries a debit (semantics S24).
func (r *Redis) readClock(ctx context.Context, c interface {
	Time(context.Context) *redis.TimeCmd
},
) error {
	sent := r.local()
	t, err := c.Time(ctx).Result()
	if err != nil {
		return fmt.Errorf("store clock: %w", err)
	}
	r.offset.observe(t.UnixMilli(), sent, r.local())
	return nil
}

// local is the local monotonic time.
func (r *Redis) local() time.Duration { return time.Since(r.start) }

// Run carries asks to the store until ctx ends; then it answers what still
// waits with ClassRefused and returns nil. It may run again afterwards. It
// begins with a connection and the script, so that the first callers need not
// pay for them out of their own few milliseconds.
func (r *Redis) Run(ctx context.Context) error {
	r.queue.open()
	var g errgroup.Group
	g.Go(func() error {
		r.greet(ctx)
		return nil
	})
	for range flights {
		g.Go(func() error {
			newFlight(r).run(ctx)
			return nil
		})
	}
	err := g.Wait()
	for _, w := range r.queue.close() {
		r.fail(w, limit.ClassRefused)
	}
	return err
}

// greet connects and loads the script, once. A store that cannot be reached is
// met again by the first debit.
func (r *Redis) greet(run context.Context) {
	ctx, cancel := context.WithTimeout(run, r.dialTimeout)
	defer cancel()
	if err := r.loadScript(ctx, r.loads.Load()); err != nil {
		if run.Err() != nil {
			return // Our own stop broke it off, which says nothing about the store.
		}
		class := classify(err, false)
		r.noteReach(class, err, false)
		r.noteState(class, err)
		return
	}
	r.noteState(limit.ClassNone, nil)
}

// Close closes the connections. Run must have ended.
func (r *Redis) Close() error { return r.client.Close() }

// Submit queues an ask and returns at once. complete is called exactly once,
// on another goroutine or before Submit returns, with the verdicts written
// (ClassNone), or with the class that says why there are none; then no verdict
// was written and the checks carry the class.
//
// The ask belongs to the authority until then. A deadline that passes while a
// call is on its way is noticed when that call ends, which is no later than the
// deadline of the last ask that it carries, or than Config.DialTimeout when it
// needs a new connection.
func (r *Redis) Submit(ask *limit.Ask, complete func(limit.Class)) {
	r.submit(&waiter{ask: ask, complete: complete})
}

func (r *Redis) submit(w *waiter) {
	if len(w.ask.Checks) == 0 {
		w.complete(limit.ClassNone)
		return
	}
	if len(w.ask.Checks) > limit.MaxChecks {
		r.fail(w, limit.ClassOverloaded)
		return
	}
	now := time.Now()
	if w.expired(now) {
		r.fail(w, limit.ClassExpired)
		return
	}
	if !r.queue.put(w, now) {
		r.fail(w, limit.ClassOverloaded)
	}
}

// fail completes a waiter that the store did not decide, unless its caller has
// gone.
func (r *Redis) fail(w *waiter, class limit.Class) {
	if !w.claim() {
		return
	}
	w.giveUp(class)
	r.metrics.failed(class, w.sent.Load())
	w.complete(class)
}

// giveUp marks every check with the class. The waiter must be claimed.
func (w *waiter) giveUp(class limit.Class) {
	for i := range w.ask.Checks {
		w.ask.Checks[i].Verdict = limit.Verdict{Class: class}
	}
}

// call is a pooled blocking caller.
type call struct {
	done  chan struct{}
	timer *time.Timer
}

var calls = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &call{done: make(chan struct{}, 1), timer: t}
}}

// Debit decides ask and returns by its deadline, or when ctx ends: with every
// verdict written, or with none and the class in every check. An ask that was
// given up must not be reused, whatever its class: the queue or a call on its way
// still reads its checks.
//
// A cancelled ask that is on its way is waited for nonetheless. Its debit stands
// in any case (semantics S10), and clients that give up at will must not make a
// store look as if it were late.
func (r *Redis) Debit(ctx context.Context, ask *limit.Ask) {
	c := calls.Get().(*call)
	w := &waiter{ask: ask, complete: func(limit.Class) { c.done <- struct{}{} }}
	var expired <-chan time.Time
	if !ask.Deadline.IsZero() {
		c.timer.Reset(time.Until(ask.Deadline))
		expired = c.timer.C
	}
	r.submit(w)
	select {
	case <-c.done:
	case <-expired:
		r.leave(w, c)
	case <-ctx.Done():
		if w.sent.Load() && errors.Is(ctx.Err(), context.Canceled) {
			select {
			case <-c.done:
			case <-expired:
				r.leave(w, c)
			}
			break
		}
		r.leave(w, c)
	}
	c.timer.Stop()
	calls.Put(c)
}

// leave stops waiting, unless the answer is being written at this moment.
func (r *Redis) leave(w *waiter, c *call) {
	if !w.claim() {
		<-c.done
		return
	}
	class := limit.ClassExpired
	switch {
	case w.sent.Load():
		class = limit.ClassTimeout
	case r.reach.lost():
		class = limit.ClassRefused
	}
	w.giveUp(class)
	r.metrics.failed(class, w.sent.Load())
}
