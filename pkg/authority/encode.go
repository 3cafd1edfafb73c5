package authority

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/weir-rl/weir/pkg/limit"
)

// The script's argument and reply are MessagePack arrays of integers: the one
// encoding that Redis's Lua reads and writes natively with all 53 bits.

func appendInt(dst []byte, v int64) []byte {
	switch {
	case v < 0:
		dst = append(dst, 0xd3)
		return binary.BigEndian.AppendUint64(dst, uint64(v))
	case v < 1<<7:
		return append(dst, byte(v))
	case v < 1<<16:
		dst = append(dst, 0xcd)
		return binary.BigEndian.AppendUint16(dst, uint16(v))
	case v < 1<<32:
		dst = append(dst, 0xce)
		return binary.BigEndian.AppendUint32(dst, uint32(v))
	}
	dst = append(dst, 0xcf)
	return binary.BigEndian.AppendUint64(dst, uint64(v))
}

// flag values of a check's kind in the script's argument.
const kindOverdraw = 4

// paramSize and replySize are the integers of one rule in the argument and of
// one check in the reply.
const (
	paramSize = 12
	replySize = 3
)

// arguments builds the keys and the argument of one script call. It is reused
// from flight to flight and not safe for concurrent use.
type arguments struct {
	keys   []limit.Key
	index  map[limit.Key]int
	rules  map[*limit.Params]int
	order  []*limit.Params
	ints   []int64
	blob   []byte
	names  []byte
	args   []any
	prefix string
}

func newArguments(prefix string) *arguments {
	return &arguments{
		prefix: prefix,
		index:  make(map[limit.Key]int, maxKeys),
		rules:  make(map[*limit.Params]int),
	}
}

// reset forgets the previous flight.
func (a *arguments) reset() {
	clear(a.index)
	clear(a.rules)
	a.keys, a.order, a.ints = a.keys[:0], a.order[:0], a.ints[:0]
}

// add appends one request. notAfter is in the store's clock.
func (a *arguments) add(ask *limit.Ask, notAfter int64) {
	denied := int64(0)
	if ask.Denied {
		denied = 1
	}
	a.ints = append(a.ints, max(0, notAfter), denied, int64(len(ask.Checks)))
	for i := range ask.Checks {
		c := &ask.Checks[i]
		k, ok := a.index[c.Key]
		if !ok {
			a.keys = append(a.keys, c.Key)
			k = len(a.keys)
			a.index[c.Key] = k
		}
		r, ok := a.rules[c.Params]
		if !ok {
			a.order = append(a.order, c.Params)
			r = len(a.order)
			a.rules[c.Params] = r
		}
		kind := int64(c.Kind)
		if c.Overdraw {
			kind += kindOverdraw
		}
		a.ints = append(a.ints, int64(k), int64(r), c.Cost, kind)
	}
}

// build returns the arguments of EVALSHA for the requests added. now is the
// store's time as this process estimates it: calendar boundaries are those
// around it.
func (a *arguments) build(requests int, now int64) []any {
	n := 2 + paramSize*len(a.order) + len(a.ints)
	b := append(a.blob[:0], 0xdd)
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	b = appendInt(b, int64(len(a.order)))
	b = appendInt(b, int64(requests))
	for _, p := range a.order {
		var bounds [3]int64
		if p.CalendarCode != 0 {
			bounds = p.Bounds(now)
		}
		for _, v := range [paramSize]int64{
			int64(p.Algorithm), int64(p.Version), p.Limit, p.Length(), p.Window,
			p.Num, p.Den, p.Capacity * 1000, p.MaxLevel(), bounds[0], bounds[1], bounds[2],
		} {
			b = appendInt(b, v)
		}
	}
	for _, v := range a.ints {
		b = appendInt(b, v)
	}
	a.blob = b

	a.names = a.names[:0]
	a.args = append(a.args[:0], "evalsha", debitSHA, len(a.keys))
	// The names share one buffer; it must not grow while slices of it are kept.
	if need := len(a.keys) * (len(a.prefix) + 64); cap(a.names) < need {
		a.names = make([]byte, 0, need)
	}
	for i := range a.keys {
		from := len(a.names)
		a.names = a.keys[i].Append(a.names, a.prefix)
		a.args = append(a.args, a.names[from:len(a.names):len(a.names)])
	}
	a.args = append(a.args, b)
	return a.args
}

// The verdicts of the script.
const (
	replyAllow = iota
	replyDeny
	replyNever
	replyLate
	replyStale
	replyNewer
	replyUndecided
	replyNotEvaluated
)

var errReply = errors.New("reply of an unexpected form")

// reader reads integers out of a MessagePack array.
type reader struct {
	b   []byte
	n   int // integers left
	err error
}

// open reads the array's header.
func (r *reader) open(reply string) {
	r.b = []byte(reply)
	switch {
	case len(r.b) >= 1 && r.b[0]>>4 == 9:
		r.n, r.b = int(r.b[0]&15), r.b[1:]
	case len(r.b) >= 3 && r.b[0] == 0xdc:
		r.n, r.b = int(binary.BigEndian.Uint16(r.b[1:])), r.b[3:]
	case len(r.b) >= 5 && r.b[0] == 0xdd:
		r.n, r.b = int(binary.BigEndian.Uint32(r.b[1:])), r.b[5:]
	default:
		r.err = fmt.Errorf("%w: no array", errReply)
	}
}

// next returns the next integer, 0 after the first fault.
func (r *reader) next() int64 {
	if r.err != nil {
		return 0
	}
	if r.n == 0 || len(r.b) == 0 {
		r.err = fmt.Errorf("%w: too short", errReply)
		return 0
	}
	r.n--
	c := r.b[0]
	r.b = r.b[1:]
	switch {
	case c < 0x80:
		return int64(c)
	case c >= 0xe0:
		return int64(int8(c))
	case c >= 0xcc && c <= 0xcf:
		return int64(r.bytes(1 << (c - 0xcc)))
	case c >= 0xd0 && c <= 0xd3:
		size := 1 << (c - 0xd0)
		shift := 64 - 8*size
		return int64(r.bytes(size)<<shift) >> shift
	}
	r.err = fmt.Errorf("%w: no integer", errReply)
	return 0
}

func (r *reader) bytes(n int) uint64 {
	if len(r.b) < n {
		r.err = fmt.Errorf("%w: truncated", errReply)
		return 0
	}
	var v uint64
	for _, c := range r.b[:n] {
		v = v<<8 | uint64(c)
	}
	r.b = r.b[n:]
	return v
}

// number returns the next integer, which must lie in [from, limit.Exact).
func (r *reader) number(from int64) int64 {
	v := r.next()
	if r.err == nil && (v < from || v >= limit.Exact) {
		r.err = fmt.Errorf("%w: %d out of range", errReply, v)
	}
	return v
}

// decodeReply reads the script's answer for that many checks. The verdicts are
// in the order of the checks of all requests.
func decodeReply(reply string, checks int, dst []limit.Verdict) (now, foreign int64, verdicts []limit.Verdict, err error) {
	var r reader
	r.open(reply)
	if r.err == nil && r.n != 2+replySize*checks {
		return 0, 0, nil, fmt.Errorf("%w: %d integers for %d checks", errReply, r.n, checks)
	}
	now, foreign = r.number(0), r.number(0)
	verdicts = dst[:0]
	for range checks {
		code, remaining, ms := r.number(0), r.number(0), r.number(-1)
		if r.err != nil {
			break
		}
		v, ok := verdict(code, remaining, ms)
		if !ok {
			return 0, 0, nil, fmt.Errorf("%w: verdict %d", errReply, code)
		}
		verdicts = append(verdicts, v)
	}
	if r.err == nil && len(r.b) != 0 {
		r.err = fmt.Errorf("%w: %d bytes too many", errReply, len(r.b))
	}
	if r.err != nil {
		return 0, 0, nil, r.err
	}
	return now, foreign, verdicts, nil
}

func verdict(code, remaining, ms int64) (limit.Verdict, bool) {
	v := limit.Verdict{Source: limit.SourceAuthority, Remaining: remaining, Reset: ms}
	switch code {
	case replyAllow:
		v.Outcome, v.Cause = limit.Allow, limit.CauseAllowed
	case replyDeny:
		v.Outcome, v.Cause, v.Retry = limit.Deny, limit.CauseLimit, ms
	case replyNever:
		v.Outcome, v.Cause, v.Retry = limit.Deny, limit.CauseTooLarge, -1
	case replyLate:
		return limit.Verdict{Class: limit.ClassLate}, true
	case replyStale:
		return limit.Verdict{Class: limit.ClassStale}, true
	case replyNewer:
		return limit.Verdict{Class: limit.ClassLayout}, true
	case replyUndecided:
		return limit.Verdict{}, true
	case replyNotEvaluated:
		return limit.Verdict{Outcome: limit.NotEvaluated}, true
	default:
		return v, false
	}
	return v, true
}
