package limit

// A sliding window counts in two windows of its length: what the current one
// took counts whole, what the one before took counts by the part of it that a
// window ending now still covers.
//
//	estimate = Used + ceil(Previous × (End - now) / length)
//
// maxSliding is the most that either can be: with it and MaxSlidingWindow the
// products of scale stay below Exact. A limit and one overdraw stay below it;
// more can only be read from a store, and counts as this.
const maxSliding = 1<<33 - 1

// MaxSlidingWindow is the longest window of a sliding window, in milliseconds:
// two years and two months.
const MaxSlidingWindow = 1<<36 - 1

// frame is the window of some length that an instant lies in.
type frame struct {
	begin, end int64 // milliseconds since the epoch
	next       int64 // the length of the window after it, or more
}

func (f frame) length() int64 { return f.end - f.begin }

// frame returns the window of a stored length that now lies in. The length may
// be another rule's: a calendar unit that this rule does not know is taken for
// the rule's own length. Of the window after the last one that the rule's
// boundaries tell of nothing is known but that it is not twice as long.
func (p *Params) frame(now, length int64) frame {
	if p.CalendarCode != 0 && length == p.Length() {
		b := p.Bounds(now)
		if now < b[1] {
			return frame{b[0], b[1], b[2] - b[1]}
		}
		return frame{b[1], b[2], min(2*(b[2]-b[1]), MaxSlidingWindow)}
	}
	if length < minLength || length > MaxSlidingWindow {
		length = min(p.Window, MaxSlidingWindow)
	}
	begin := now - now%length
	return frame{begin, begin + length, length}
}

// slide brings a sliding window to now. A window that ends later than now's
// stays in force: the clock went back (semantics S15).
func (s *State) slide(p *Params, now int64) {
	s.Used, s.Previous = min(s.Used, maxSliding), min(s.Previous, maxSliding)
	if s.End > now {
		return
	}
	f := p.frame(now, s.Length)
	if s.End < f.begin || s.Used == 0 {
		*s = State{}
		return
	}
	s.Previous, s.Used, s.End = s.Used, 0, f.end
}

// weighted is what the previous window still counts at now, rounded up.
func (s *State) weighted(p *Params, now int64) int64 {
	length := p.frame(now, s.Length).length()
	q, rest := scale(s.Previous, min(s.End-now, length), length)
	if rest > 0 {
		q++
	}
	return q
}

// estimate is what a sliding window has used at now.
func (s *State) estimate(p *Params, now int64) int64 { return s.Used + s.weighted(p, now) }

// slideTime is the smallest wait after which a sliding window that has no room
// for need has it: in this window as the previous one loses weight, or in the
// next one, where this one does. need must not exceed the limit.
//
// At a time before the end of a window, count hits of the one before weigh at
// most room when time <= length × room / count.
func (s *State) slideTime(p *Params, now, need int64) int64 {
	f := p.frame(now, s.Length)
	if room := p.Limit - s.Used - need; room >= 0 {
		left, _ := scale(f.length(), room, s.Previous)
		return s.End - now - left
	}
	left, _ := scale(f.next, p.Limit-need, s.Used)
	return s.End - now + f.next - left
}

// scale is a × b / c and the rest of the division, for b <= c. One of a and c
// must be below 2^33 and the other, with b below both bounds, below 2^36: then
// no product reaches Exact.
func scale(a, b, c int64) (quotient, rest int64) {
	const half = 1 << 16
	x := a / half * b
	q := x / c
	x = (x-q*c)*half + a%half*b
	return q*half + x/c, x % c
}
