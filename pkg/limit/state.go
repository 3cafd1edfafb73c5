package limit

import "encoding/binary"

// State is what is stored of one key. It says what was used, never what is
// left, so that changed numbers keep it (semantics S13). The zero State is an
// absent key, which means an unused budget.
//
// Which fields mean something depends on the algorithm:
//
//	FixedWindow    Used (hits), End, Length
//	SlidingWindow  Used (hits of the current window), Previous, End, Length
//	TokenBucket    Used (the level of a leaky meter, in millitokens), Remainder, Updated
//	SlidingLog     Used (hits of all entries), Entries
//	Concurrency    Permits
type State struct {
	Algorithm Algorithm
	Version   uint64 // of the policy set that gave the state its form

	Used     int64
	Previous int64
	End      int64 // of the window, milliseconds since the epoch
	Length   int64 // see Params.Length

	Remainder int64 // 0 <= Remainder < Den of the rule, in 1/Den millitokens
	Updated   int64 // milliseconds since the epoch; never moves back

	// Entries are in the order of their times, which differ. Copies of a State
	// share them; see Evaluate for who may change them.
	Entries []LogEntry
	Permits []Permit
}

// LogEntry is what a sliding log admitted at one instant.
type LogEntry struct {
	Time int64 // milliseconds since the epoch
	N    int64 // hits, 1 to 65,535
}

// Permit is one permit of a concurrency limit.
type Permit struct {
	ID     [16]byte
	Expiry int64 // milliseconds since the epoch
}

// Layout is the number of the layout that AppendState writes. Editing a layout
// means a new number here, in the script, and in the golden file of both.
const Layout = 1

// maxLayout is the highest number that a layout can have. The lowest byte of
// text is the tab, 9, so text is never taken for a newer layout.
const maxLayout = 8

// All numbers are big-endian. Every state starts with a header:
//
//	1  algorithm, as its letter
//	1  layout
//	6  policy version
//
// and goes on with a body (7 bytes: a count below 2^53; 6 bytes: milliseconds):
//
//	F  count 7, end 6, length 6                  27 bytes in all
//	S  current 7, previous 7, end 6, length 6    34
//	B  level 7, remainder 7, updated 6           28
//	L  (time 6, n 2) for each entry              8 + 8n
//	C  (permit 16, expiry 6) for each permit     8 + 22n
const (
	headerSize = 8
	fixedSize  = headerSize + 7 + 6 + 6
	slideSize  = headerSize + 7 + 7 + 6 + 6
	bucketSize = headerSize + 7 + 7 + 6
	entrySize  = 6 + 2
	permitSize = 16 + 6
)

func appendUint(dst []byte, v int64, size int) []byte {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(v))
	return append(dst, b[8-size:]...)
}

func readUint(b []byte) int64 {
	var v uint64
	for _, c := range b {
		v = v<<8 | uint64(c)
	}
	return int64(v)
}

// AppendState appends the stored form of s, which must not be absent.
func AppendState(dst []byte, s *State) []byte {
	dst = append(dst, byte(s.Algorithm), Layout)
	dst = appendUint(dst, int64(s.Version), 6)
	switch s.Algorithm {
	case FixedWindow:
		dst = appendUint(dst, s.Used, 7)
		dst = appendUint(dst, s.End, 6)
		return appendUint(dst, s.Length, 6)
	case SlidingWindow:
		dst = appendUint(dst, s.Used, 7)
		dst = appendUint(dst, s.Previous, 7)
		dst = appendUint(dst, s.End, 6)
		return appendUint(dst, s.Length, 6)
	case TokenBucket:
		dst = appendUint(dst, s.Used, 7)
		dst = appendUint(dst, s.Remainder, 7)
		return appendUint(dst, s.Updated, 6)
	case SlidingLog:
		for _, e := range s.Entries {
			dst = appendUint(dst, e.Time, 6)
			dst = appendUint(dst, e.N, 2)
		}
	case Concurrency:
		for _, p := range s.Permits {
			dst = append(dst, p.ID[:]...)
			dst = appendUint(dst, p.Expiry, 6)
		}
	}
	return dst
}

// Form says what a stored string is.
type Form uint8

// The forms.
const (
	Known   Form = iota // a state of this layout
	Newer               // a state of a layout above this one's: not to be touched
	Foreign             // nothing that Weir wrote: to be overwritten, counted
)

var formNames = [...]string{"known", "newer", "foreign"}

// String returns the name used in logs and metrics.
func (f Form) String() string { return name("form", formNames[:], uint8(f)) }

// DecodeState reads a stored string. The State is absent unless it is Known.
func DecodeState(b []byte) (State, Form) {
	if len(b) < headerSize || b[0] < 'A' || b[0] > 'Z' || b[1] == 0 || b[1] > maxLayout {
		return State{}, Foreign
	}
	if b[1] > Layout {
		return State{}, Newer
	}
	s := State{Algorithm: Algorithm(b[0]), Version: uint64(readUint(b[2:8]))}
	body := b[headerSize:]
	var ok bool
	switch s.Algorithm {
	case FixedWindow:
		if ok = len(b) == fixedSize; ok {
			s.Used, s.End, s.Length = readUint(body[:7]), readUint(body[7:13]), readUint(body[13:19])
		}
	case SlidingWindow:
		if ok = len(b) == slideSize; ok {
			s.Used, s.Previous = readUint(body[:7]), readUint(body[7:14])
			s.End, s.Length = readUint(body[14:20]), readUint(body[20:26])
		}
	case TokenBucket:
		if ok = len(b) == bucketSize; ok {
			s.Used, s.Remainder, s.Updated = readUint(body[:7]), readUint(body[7:14]), readUint(body[14:20])
		}
	case SlidingLog:
		ok = len(body)%entrySize == 0 && len(body) <= MaxLog*entrySize
		for last := int64(-1); ok && len(body) > 0; body = body[entrySize:] {
			e := LogEntry{readUint(body[:6]), readUint(body[6:8])}
			ok = e.Time > last && e.N > 0
			last = e.Time
			s.Used += e.N
			s.Entries = append(s.Entries, e)
		}
	case Concurrency:
		for ok = len(body)%permitSize == 0; ok && len(body) > 0; body = body[permitSize:] {
			p := Permit{Expiry: readUint(body[16:22])}
			copy(p.ID[:], body)
			s.Permits = append(s.Permits, p)
		}
	}
	if !ok || s.Used >= Exact || s.Previous >= Exact || s.Remainder >= Exact {
		return State{}, Foreign
	}
	return s, Known
}

// decided says whether this program decides states of that algorithm.
func decided(a Algorithm) bool { return a != Concurrency }

// windowed says that states of that algorithm are of one window.
func windowed(a Algorithm) bool { return a == FixedWindow || a == SlidingWindow }

// windowEnd returns the end of the window that now lies in, and false when now
// lies outside the calendar boundaries that the caller knows (semantics S16).
func (p *Params) windowEnd(now int64) (int64, bool) {
	if p.CalendarCode == 0 {
		return now - now%p.Window + p.Window, true
	}
	b := p.Bounds(now)
	return CalendarEnd(b, now)
}

// CalendarEnd returns the end of the calendar window that now lies in, given
// the three boundaries around some instant, and false outside of them.
func CalendarEnd(b [3]int64, now int64) (int64, bool) {
	switch {
	case now < b[0] || now >= b[2]:
		return 0, false
	case now < b[1]:
		return b[1], true
	}
	return b[2], true
}

// remainder is the stored remainder as this rule reads it: one that another
// denominator left behind counts 0 (semantics S13).
func (s *State) remainder(p *Params) int64 {
	if s.Remainder >= p.Den {
		return 0
	}
	return s.Remainder
}

// drain lets the bucket leak from Updated to now at the rule's rate:
//
//	x = (now - Updated) × Num + Remainder;  level -= floor(x / Den);  Remainder = x mod Den
//
// so that slow rates lose nothing to rounding. A clock that went back drains
// nothing and leaves Updated where it is (invariant I4). With keepExcess, what
// lies above the rule's highest level stays: a newer rule with a larger bucket
// owns it, or it is about to become a count.
//
// All products stay below Exact: level <= MaxLevel, and dt × Num < level × Den
// where it is formed.
func (s *State) drain(p *Params, now int64, keepExcess bool) {
	level, excess := s.Used, int64(0)
	if most := p.MaxLevel(); level > most {
		if keepExcess {
			excess = level - most
		}
		level = most
	}
	rest := s.remainder(p)
	if dt := now - s.Updated; dt > 0 {
		if dt >= ceilDiv(level*p.Den, p.Num) {
			level, rest = 0, 0
		} else {
			x := dt*p.Num + rest
			level -= x / p.Den
			rest = x % p.Den
		}
		s.Updated = now
	}
	if level == 0 {
		rest = 0
	}
	s.Used, s.Remainder = level+excess, rest
}

// drainTime is the time from now until the bucket has leaked by the given
// millitokens, in milliseconds. A bucket that is dated in the future waits for
// the clock first.
func (s *State) drainTime(p *Params, now, by int64) int64 {
	if by <= 0 {
		return 0
	}
	by = min(by, p.MaxLevel())
	return max(0, s.Updated-now) + max(0, ceilDiv(by*p.Den-s.remainder(p), p.Num))
}

// convert gives the state the form of the rule's algorithm (semantics S14).
// Used is rounded up into hits; a bucket starts to leak now, a log is one entry
// at now, and a window that comes from another one is of the same time.
func (s *State) convert(p *Params, now int64) {
	if s.Algorithm == p.Algorithm {
		return
	}
	used := s.hitsUsed(p, now)
	to := State{Algorithm: p.Algorithm, Version: s.Version, Used: used}
	switch p.Algorithm {
	case FixedWindow:
		to.End, to.Length = s.End, s.Length
	case SlidingWindow:
		to.Used = min(used, maxSliding)
		to.End, to.Length = s.End, s.Length
	case TokenBucket:
		to.Used, to.Updated = min(used*1000, p.MaxLevel()), now
	case SlidingLog:
		if to.Used = min(used, p.logLimit()); to.Used > 0 {
			to.add(now, to.Used)
		}
	}
	*s = to
}

// hitsUsed is what is used at now, in whole hits.
func (s *State) hitsUsed(p *Params, now int64) int64 {
	switch s.Algorithm {
	case SlidingWindow:
		return s.estimate(p, now)
	case TokenBucket:
		s.drain(p, now, true) // a count has no highest level
		return ceilDiv(s.Used, 1000)
	}
	return s.Used
}

func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}

// ttlSlack is how much longer a key lives than its state means anything
// (semantics S21).
const ttlSlack = 1000

// TTL is the time from now until the state equals an absent one, plus one
// second, in milliseconds. Of a sliding window in the last calendar unit that
// the rule's boundaries tell of, it is longer: twice that unit is more than any
// next one.
func (s *State) TTL(p *Params, now int64) int64 {
	switch s.Algorithm {
	case FixedWindow:
		return s.End - now + ttlSlack
	case SlidingWindow:
		if s.Used == 0 {
			return s.End - now + ttlSlack
		}
		return s.End + p.frame(now, s.Length).next - now + ttlSlack
	case SlidingLog:
		return s.Entries[len(s.Entries)-1].Time + p.Window - now + ttlSlack
	}
	return s.drainTime(p, now, s.Used) + ttlSlack
}

// Unused says that the state equals an absent one.
func (s *State) Unused() bool { return s.Used == 0 && s.Previous == 0 }
