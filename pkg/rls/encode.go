package rls

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-rl/weir/pkg/pipeline"
)

// Field numbers of RateLimitResponse and of the messages in it.
const (
	responseCode, responseStatuses, responseHeaders, responseBody, responseMetadata = 1, 2, 3, 5, 6
	statusCode, statusLimit, statusRemaining, statusReset                           = 1, 2, 3, 4
	limitRequests, limitUnit, limitNameField, limitMultiplier                       = 1, 2, 3, 4
	durationSeconds                                                                 = 1
	headerKey, headerValue                                                          = 1, 2
	structFields, mapKey, mapValue, valueString                                     = 1, 1, 2, 3
)

// maxSeconds is what a protobuf Duration can hold, about 10,000 years.
const maxSeconds = 315_576_000_000

// encoder writes one answer. Every string in it is checked here, since one
// byte that is no UTF-8 makes Envoy drop the whole answer, and a line break in
// a header would be sent to the client as it is.
type encoder struct {
	b       []byte
	dropped int // headers that were not fit to send
}

// appendAnswer appends the wire form of the answer to d, whose Code is set.
// It reports how many headers it had to leave out, which is a fault of Weir.
func appendAnswer(b []byte, d *pipeline.Decision) ([]byte, int) {
	e := encoder{b: b}
	e.uint(responseCode, uint64(d.Code))
	for i := range d.Statuses {
		e.status(&d.Statuses[i], d.Code)
	}
	// Headers and body go with a denial only. On an allowed answer Envoy would
	// join our content-type to the upstream's, and global shadow mode, which
	// turns only the code into OK, must not be visible to clients.
	if d.Code == pipeline.OverLimit {
		h := hintOf(d)
		if h.ok {
			e.header("retry-after", strconv.FormatInt(h.seconds, 10))
			e.header("retry-after-ms", strconv.FormatInt(h.millis, 10))
		}
		e.header("content-type", "application/problem+json")
		e.header("cache-control", "no-store")
		mark := e.begin(responseBody)
		e.b = appendProblem(e.b, d, h)
		e.end(mark)
	}
	e.metadata(d)
	return e.b, e.dropped
}

func (e *encoder) status(s *pipeline.Status, overall pipeline.Code) {
	mark := e.begin(responseStatuses)
	code := s.Code
	if code != pipeline.OK && code != pipeline.OverLimit {
		code = overall // Envoy takes an unset code for OK
	}
	e.uint(statusCode, uint64(code))
	if s.HasLimit {
		inner := e.begin(statusLimit)
		e.uint(limitRequests, uint64(s.RequestsPerUnit))
		e.uint(limitUnit, uint64(s.Unit))
		e.string(limitNameField, limitName(s.Name))
		if s.Multiplier > 1 {
			wrapper := e.begin(limitMultiplier)
			e.uint(wrapperValue, uint64(s.Multiplier))
			e.end(wrapper)
		}
		e.end(inner)
	}
	e.uint(statusRemaining, uint64(s.Remaining))
	if s.ResetSeconds != 0 {
		// Envoy prints a negative one as a number near 2^64, and cuts a
		// fraction of a second to 0.
		inner := e.begin(statusReset)
		e.uint(durationSeconds, uint64(min(max(1, s.ResetSeconds), maxSeconds)))
		e.end(inner)
	}
	e.end(mark)
}

// header adds a header to the response, or counts it as dropped.
func (e *encoder) header(name, value string) {
	if !validHeader(name, value) {
		e.dropped++
		return
	}
	mark := e.begin(responseHeaders)
	e.string(headerKey, name)
	e.string(headerValue, value)
	e.end(mark)
}

// metadata writes the dynamic metadata: strings only, since Envoy's matchers
// and the metadata action read nothing else, and none of them empty.
func (e *encoder) metadata(d *pipeline.Decision) {
	m := d.Metadata()
	mark := e.begin(responseMetadata)
	e.pair("source", m.Source)
	e.pair("cause", m.Cause)
	e.pair("rule", metadataText(m.Rule))
	e.pair("shadow", metadataText(m.Shadow))
	if d.Set != nil {
		var digits [20]byte
		e.pair("policy_version", string(strconv.AppendUint(digits[:0], d.Set.Version(), 10)))
	}
	e.pair("enforced", m.Enforced)
	if d.Code == pipeline.OverLimit && d.Unavailable {
		e.pair("deny_as", "unavailable")
	}
	e.end(mark)
}

func (e *encoder) pair(key, value string) {
	if value == "" {
		return
	}
	mark := e.begin(structFields)
	e.string(mapKey, key)
	inner := e.begin(mapValue)
	// A string_value is written even when it is empty; none is here.
	e.string(valueString, value)
	e.end(inner)
	e.end(mark)
}

// uint writes a varint field; 0 is not written, as in proto3.
func (e *encoder) uint(num protowire.Number, v uint64) {
	if v != 0 {
		e.b = protowire.AppendTag(e.b, num, protowire.VarintType)
		e.b = protowire.AppendVarint(e.b, v)
	}
}

func (e *encoder) string(num protowire.Number, s string) {
	if s != "" {
		e.b = protowire.AppendTag(e.b, num, protowire.BytesType)
		e.b = protowire.AppendString(e.b, s)
	}
}

// begin starts a field with a length, and end fills the length in. One byte is
// kept for it; contents of 128 bytes and more are moved up.
func (e *encoder) begin(num protowire.Number) int {
	e.b = append(protowire.AppendTag(e.b, num, protowire.BytesType), 0)
	return len(e.b)
}

func (e *encoder) end(mark int) {
	size := len(e.b) - mark
	if size < 1<<7 {
		e.b[mark-1] = byte(size)
		return
	}
	more := protowire.SizeVarint(uint64(size)) - 1
	e.b = append(e.b, make([]byte, more)...)
	copy(e.b[mark+more:], e.b[mark:mark+size])
	protowire.AppendVarint(e.b[:mark-1], uint64(size))
}
