package authority

import (
	"math/rand/v2"
	"slices"

	"github.com/weir-rl/weir/pkg/limit"
)

// Bounds of random runs. The window is what most rules have; the clock moves
// in fractions and multiples of it.
const (
	randomKeys   = 48
	randomWindow = 10_000
)

// world makes random requests. Every key has a handful of revisions of its
// rule: other algorithms, numbers and policy versions, of which one is current
// for a while.
type world struct {
	*rand.Rand
	estimate int64 // the store's time as the sidecar believes it; the calendars know no other
	rules    [][]*limit.Params
	current  []int
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // reproducible, not secret
	for k := range randomKeys {
		var revisions []*limit.Params
		for range 1 + k%5 {
			revisions = append(revisions, w.rule(k))
		}
		w.rules = append(w.rules, revisions)
		w.current = append(w.current, 0)
	}
	return w
}

// in returns a random number of [from, to].
func (w *world) in(from, to int64) int64 { return from + w.Int64N(to-from+1) }

func (w *world) chance(percent int) bool { return w.IntN(100) < percent }

func pick[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

// rule makes one revision of the rule of key k. The first keys have one plain
// rule for ever, the others whatever a loader lets through.
func (w *world) rule(k int) *limit.Params {
	p := &limit.Params{
		Algorithm: pick(w, limit.FixedWindow, limit.TokenBucket, limit.SlidingWindow, limit.SlidingLog),
		Limit:     w.in(1, 30),
		Window:    randomWindow,
	}
	if k >= 10 {
		p.Version = uint64(pick(w, 0, 1, 1, 2, 3, 1<<47))
		p.Window = pick[int64](w, randomWindow, randomWindow, randomWindow, 1_000, 7_777, 60_000, 86_400_000)
	}
	if k%8 == 7 {
		// Numbers as large as the arithmetic allows.
		p.Limit = w.in(1, 1<<32)
		p.Window = pick[int64](w, randomWindow, 31_536_000_000)
		if p.Algorithm == limit.FixedWindow && w.chance(20) {
			p.Window = 1 << 47
		}
	}
	if k%6 == 5 {
		// A calendar: its boundaries are to be met, which only windows do.
		p.Window = min(p.Window, randomWindow)
		if w.chance(70) {
			p.Algorithm = pick(w, limit.FixedWindow, limit.SlidingWindow)
		}
	}
	if p.Algorithm == limit.SlidingLog {
		p.Limit = min(p.Limit, limit.MaxLog)
	}
	p.Capacity = pick(w, p.Limit, w.in(1, 60))
	p.OverdrawCap = pick(w, p.Capacity, 0, 3*p.Capacity)
	p.Rate(p.Limit, p.Window)
	if k%6 == 5 {
		// A calendar whose boundaries are not those of the epoch, and which
		// the caller knows only around its own idea of the time.
		length, shift := p.Window, w.in(0, p.Window-1)
		p.CalendarCode = uint8(w.in(1, 4))
		p.Bounds = func(int64) [3]int64 {
			begin := w.estimate - (w.estimate-shift)%length
			return [3]int64{begin, begin + length, begin + 2*length}
		}
	}
	return p
}

// cost is 0 to twice the budget, mostly small.
func (w *world) cost(p *limit.Params) int64 {
	most := min(2*p.Budget(), limit.MaxCost)
	switch w.IntN(10) {
	case 0:
		return 0
	case 1, 2, 3, 4, 5:
		return w.in(0, max(1, most/8))
	case 6, 7, 8:
		return w.in(0, max(1, most/2))
	}
	return w.in(0, most)
}

// request makes one request of up to eight checks.
func (w *world) request() *limit.Ask {
	n := pick(w, 1, 1, 1, 2, 2, 3, 4, 8)
	a := &limit.Ask{Denied: w.chance(3)}
	k := w.IntN(randomKeys)
	for i := range n {
		if i > 0 && !(i == 1 && w.chance(40)) {
			k = w.IntN(randomKeys)
		}
		if w.chance(1) {
			w.current[k] = w.IntN(len(w.rules[k]))
		}
		p := w.rules[k][w.current[k]]
		if w.chance(15) {
			p = pick(w, w.rules[k]...) // another sidecar's revision
		}
		a.Checks = append(a.Checks, limit.Check{
			Key: keyNumber(k), Params: p, Cost: w.cost(p), Overdraw: w.chance(20),
			Kind: pick(w, limit.Enforced, limit.Enforced, limit.Enforced, limit.Enforced, limit.Enforced,
				limit.Quota, limit.Quota, limit.Shadow, limit.Refund),
		})
	}
	slices.SortStableFunc(a.Checks, func(x, y limit.Check) int { return int(x.Kind) - int(y.Kind) })
	return a
}

// requests makes a batch of 1 to 32 requests, some of them late. Together they
// have at most maxChecks checks.
func (w *world) requests(now int64) []timed {
	var batch []timed
	checks := 0
	for range w.in(1, 32) {
		a := w.request()
		if checks += len(a.Checks); checks > maxChecks {
			break
		}
		notAfter := now + w.in(1, 1000)
		switch w.IntN(50) {
		case 0:
			notAfter = now - 1
		case 1:
			notAfter = now
		case 2:
			notAfter = w.in(0, now)
		case 3:
			notAfter = forever
		}
		batch = append(batch, timed{a, notAfter})
	}
	return batch
}

// step moves the clock: mostly a little, often by -1 to +3 windows.
func (w *world) step(now int64) int64 {
	switch w.IntN(10) {
	case 0, 1, 2:
		return now
	case 3, 4, 5, 6, 7:
		return now + w.in(0, randomWindow/20)
	}
	return now + w.in(-randomWindow, 3*randomWindow)
}

// guess is the store's time as the sidecar believes it.
func (w *world) guess(now int64) int64 {
	switch w.IntN(20) {
	case 0:
		return now + w.in(-3*randomWindow, 3*randomWindow)
	case 1, 2:
		return now - w.in(0, randomWindow)
	}
	return now
}

// planted is something found at a key that no sidecar of this release wrote.
type planted struct {
	value string // "" is a list
	ttl   int64  // ms, 0 for none
}

// stranger makes what might be found at a key: other types, text, newer
// layouts, an algorithm not decided yet, states with impossible numbers.
func (w *world) stranger() planted {
	now := w.estimate
	state := func(s limit.State) planted {
		return planted{string(limit.AppendState(nil, &s)), w.in(1, randomWindow)}
	}
	with := func(p planted, at int, b byte) planted {
		raw := []byte(p.value)
		raw[at] = b
		p.value = string(raw)
		return p
	}
	fixed := limit.State{
		Algorithm: limit.FixedWindow, Version: uint64(w.in(0, 3)), Used: w.in(0, 40),
		End: now + w.in(-randomWindow, 2*randomWindow), Length: pick[int64](w, randomWindow, 7_777, 3),
	}
	bucket := limit.State{
		Algorithm: limit.TokenBucket, Version: uint64(w.in(0, 3)), Used: w.in(0, 200_000),
		Remainder: w.in(0, 3000), Updated: now + w.in(-2*randomWindow, randomWindow),
	}
	sliding := limit.State{
		Algorithm: limit.SlidingWindow, Version: uint64(w.in(0, 3)), Used: pick(w, 0, w.in(0, 40), w.in(0, 1<<34)),
		Previous: pick(w, 0, w.in(0, 40), w.in(0, 40), w.in(0, 1<<34)),
		End:      now + w.in(-2*randomWindow, 2*randomWindow), Length: pick[int64](w, randomWindow, 7_777, 3, 1<<40),
	}
	log := limit.State{Algorithm: limit.SlidingLog, Version: uint64(w.in(0, 3))}
	at := now - 2*randomWindow
	for range pick(w, 0, 1, w.IntN(40), w.IntN(limit.MaxLog+1)) {
		at += w.in(1, randomWindow/10)
		log.Entries = append(log.Entries, limit.LogEntry{Time: at, N: pick(w, 1, w.in(1, 5))})
	}
	held := limit.State{Algorithm: limit.Concurrency, Permits: []limit.Permit{{Expiry: now + 500}}}
	if w.chance(50) {
		switch w.IntN(11) {
		case 0:
			return planted{"", w.in(1, randomWindow)}
		case 1:
			return planted{pick(w, "1", "17", "hello", "AAAAAAAAAAAAAAAAAAAAAAAAAAA", "\x80\x04\x95"), w.in(0, randomWindow)}
		case 2:
			return with(state(pick(w, fixed, bucket)), 1, pick[byte](w, 0, 9, 32, 0xff)) // no layout
		case 3:
			return with(state(pick(w, fixed, bucket)), 0, pick[byte](w, '@', '[', 'Q', 0, 0xff)) // no algorithm
		case 4:
			p := state(pick(w, fixed, bucket, sliding, log, held))
			p.value += pick(w, "x", "\x00\x00")
			return p
		case 5:
			return with(state(pick(w, fixed, bucket)), 8, pick[byte](w, 0x20, 0xff)) // a count of 2^53 or more
		case 6:
			return with(state(bucket), 15, pick[byte](w, 0x20, 0xff)) // a remainder likewise
		case 7:
			p := state(pick(w, fixed, bucket))
			p.value = p.value[:w.IntN(len(p.value)-1)+1]
			return p
		case 8: // times that do not rise, or no hits
			e := limit.LogEntry{Time: now, N: 1}
			log.Entries = []limit.LogEntry{e, pick(w, e, limit.LogEntry{Time: now - 1, N: 1}, limit.LogEntry{Time: now + 1})}
			return state(log)
		case 9: // more than any log holds
			for at := now; len(log.Entries) <= limit.MaxLog; at++ {
				log.Entries = append(log.Entries, limit.LogEntry{Time: at + randomWindow*100, N: 1})
			}
			return state(log)
		}
		return with(state(sliding), pick(w, 8, 15), 0x20)
	}
	if w.chance(80) {
		return state(pick(w, fixed, bucket, sliding, log))
	}
	p := pick(w, with(state(pick(w, fixed, bucket)), 1, pick[byte](w, 2, 8)), state(held))
	p.ttl = w.in(1, randomWindow/20) // nothing overwrites these
	return p
}
