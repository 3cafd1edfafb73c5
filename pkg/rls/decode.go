package rls

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// Bounds of a request. What lies beyond them is checked for its form but not
// kept, and the request is denied as malformed: a caller may be able to
// multiply entries, and an error would let it through on open routes.
const (
	// MaxDescriptors is as many as a request has checks at most
	// (limit.MaxChecks): a route with more has rules that could never all hold.
	MaxDescriptors = limit.MaxChecks

	// MaxEntries is the most entries of one descriptor. Each action of Envoy's
	// configuration gives one; policies nest a handful.
	MaxEntries = 64
)

// maxPooledEntries bounds what a pooled request keeps, in entries of 32 bytes.
const maxPooledEntries = 512

// errNoRequest says that a message is no RateLimitRequest. No client of Envoy
// can cause it.
var errNoRequest = errors.New("message is not a RateLimitRequest")

// decoder holds one request and the memory that it is made of, to be used
// again. Strings are parts of one private copy of the message: whoever keeps
// one keeps the whole message and should clone it.
type decoder struct {
	request   pipeline.Request
	entries   []limit.Entry // of all descriptors, one after the other
	overrides [MaxDescriptors]pipeline.Override
}

// reset forgets the request, and with it its message.
func (d *decoder) reset() {
	clear(d.request.Descriptors)
	d.request = pipeline.Request{Descriptors: d.request.Descriptors[:0]}
	if cap(d.entries) > maxPooledEntries {
		d.entries = nil
		return
	}
	clear(d.entries)
	d.entries = d.entries[:0]
}

// unmarshal reads one message. It accepts what the generated decoder accepts,
// and strings that are not valid UTF-8: Envoy passes on whatever bytes a
// caller put into a header. Scalars that occur twice count as the last, and
// messages are merged. An error means that the message is no RateLimitRequest.
func (d *decoder) unmarshal(data mem.BufferSlice) error {
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	return d.decode(buf.ReadOnlyData())
}

func (d *decoder) decode(b []byte) error {
	d.reset()
	if n := d.message(b, string(b)); n < 0 {
		return fmt.Errorf("%w: %w", errNoRequest, protowire.ParseError(n))
	}
	return nil
}

// Each of the methods below reads one message. b and s hold the same bytes: b
// is what protowire reads, and s is where strings are taken from, since b goes
// back to the transport. Each returns a negative number, as protowire does,
// for a message of another form.

// Field numbers of RateLimitRequest and of the messages in it.
const (
	requestDomain, requestDescriptors, requestHits                               = 1, 2, 3
	descriptorEntries, descriptorLimit, descriptorHits, descriptorIsNegativeHits = 1, 2, 3, 4
	entryKey, entryValue                                                         = 1, 2
	overrideRequests, overrideUnit, overrideMultiplier                           = 1, 2, 3
	wrapperValue                                                                 = 1
)

func (d *decoder) message(b []byte, s string) int {
	seen := 0
	for len(b) > 0 {
		num, typ, n := tag(b)
		if n < 0 {
			return n
		}
		b, s = b[n:], s[n:]
		switch {
		case num == requestDomain && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				d.request.Domain = s[n-len(v) : n]
			}
		case num == requestDescriptors && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				if m := d.descriptor(v, s[n-len(v):n], seen); m < 0 {
					return m
				}
				seen++
			}
		case num == requestHits && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			d.request.HitsAddend = uint32(v)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return n
		}
		b, s = b[n:], s[n:]
	}
	return 0
}

// descriptor reads the descriptor of that index, and keeps it within the bounds.
func (d *decoder) descriptor(b []byte, s string, index int) int {
	var desc pipeline.Descriptor
	keep := index < MaxDescriptors
	first := len(d.entries)
	for len(b) > 0 {
		num, typ, n := tag(b)
		if n < 0 {
			return n
		}
		b, s = b[n:], s[n:]
		switch {
		case num == descriptorEntries && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				e, m := entry(v, s[n-len(v):n])
				if m < 0 {
					return m
				}
				if keep && len(d.entries)-first < MaxEntries {
					d.entries = append(d.entries, e)
				} else {
					d.request.Malformed = true
				}
			}
		case num == descriptorLimit && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				if desc.Limit == nil {
					desc.Limit = d.override(index)
				}
				if m := readOverride(v, desc.Limit); m < 0 {
					return m
				}
			}
		case num == descriptorHits && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				desc.HasHits = true
				if m := wrapper(v, &desc.Hits); m < 0 {
					return m
				}
			}
		case num == descriptorIsNegativeHits && typ == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			desc.Negative = protowire.DecodeBool(v)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return n
		}
		b, s = b[n:], s[n:]
	}
	if !keep {
		d.request.Malformed = true
		return 0
	}
	// The capacity ends with the descriptor, so that an append to it cannot
	// write into the next one.
	if desc.Entries = d.entries[first:len(d.entries):len(d.entries)]; len(desc.Entries) == 0 {
		desc.Entries = nil
	}
	d.request.Descriptors = append(d.request.Descriptors, desc)
	return 0
}

// override returns the place for the override of the descriptor of that index.
// Of descriptors beyond the bound only the form matters.
func (d *decoder) override(index int) *pipeline.Override {
	if index >= MaxDescriptors {
		return &pipeline.Override{Multiplier: 1}
	}
	d.overrides[index] = pipeline.Override{Multiplier: 1}
	return &d.overrides[index]
}

func entry(b []byte, s string) (e limit.Entry, _ int) {
	for len(b) > 0 {
		num, typ, n := tag(b)
		if n < 0 {
			return e, n
		}
		b, s = b[n:], s[n:]
		switch {
		case (num == entryKey || num == entryValue) && typ == protowire.BytesType:
			var v []byte
			if v, n = protowire.ConsumeBytes(b); n >= 0 {
				if text := s[n-len(v) : n]; num == entryKey {
					e.Key = text
				} else {
					e.Value = text
				}
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return e, n
		}
		b, s = b[n:], s[n:]
	}
	return e, 0
}

func readOverride(b []byte, o *pipeline.Override) int {
	for len(b) > 0 {
		num, typ, n := tag(b)
		if n < 0 {
			return n
		}
		b = b[n:]
		var v uint64
		switch {
		case num == overrideRequests && typ == protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
			o.RequestsPerUnit = uint32(v)
		case num == overrideUnit && typ == protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
			o.Unit = overrideUnitOf(int32(v))
		case num == overrideMultiplier && typ == protowire.BytesType:
			var w []byte
			if w, n = protowire.ConsumeBytes(b); n >= 0 {
				v = uint64(o.Multiplier) // the wrapper is merged into the one before
				if m := wrapper(w, &v); m < 0 {
					return m
				}
				o.Multiplier = max(1, uint32(v))
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return n
		}
		b = b[n:]
	}
	return 0
}

// overrideUnitOf maps envoy.type.v3.RateLimitUnit, which has no week.
func overrideUnitOf(v int32) policy.Unit {
	if v < int32(policy.Second) || v > int32(policy.Year) {
		return policy.UnitUnknown
	}
	return policy.Unit(v)
}

// wrapper reads a UInt64Value or UInt32Value into v, which stays as it is when
// the message does not say.
func wrapper(b []byte, v *uint64) int {
	for len(b) > 0 {
		num, typ, n := tag(b)
		if n < 0 {
			return n
		}
		b = b[n:]
		if num == wrapperValue && typ == protowire.VarintType {
			var x uint64
			if x, n = protowire.ConsumeVarint(b); n >= 0 {
				*v = x
			}
		} else {
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return n
		}
		b = b[n:]
	}
	return 0
}

// tag reads a field's number and type. protowire takes numbers up to 2^31 − 1,
// the generated decoder those that a field can have.
func tag(b []byte) (protowire.Number, protowire.Type, int) {
	num, typ, n := protowire.ConsumeTag(b)
	if n >= 0 && num > protowire.MaxValidNumber {
		return 0, 0, badFieldNumber
	}
	return num, typ, n
}

// badFieldNumber is what protowire itself returns for a field number of 0.
var badFieldNumber = func() int { _, _, n := protowire.ConsumeTag([]byte{0}); return n }()
