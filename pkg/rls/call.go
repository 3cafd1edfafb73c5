package rls

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"strings"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
)

// Answer is what a rate-limit service answered, Weir or another one.
type Answer struct{ message *rlsv3.RateLimitResponse }

// Call sends one request to the rate-limit service at target, which is
// host:port or unix:///path, in plain text, and waits for the answer until ctx
// ends. Strings are sent as they are, valid UTF-8 or not, as Envoy does.
// The error carries the gRPC status; a week as the unit of an override cannot
// be sent.
func Call(ctx context.Context, target string, r *pipeline.Request) (_ *Answer, err error) {
	message, err := AppendRequest(nil, r)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", target, err)
	}
	if !strings.HasPrefix(target, "unix:") {
		target = "passthrough:///" + target
	}
	conn, err := grpc.NewClient(target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(callCodec{}), grpc.MaxCallRecvMsgSize(DefaultMaxRecvMsgSize)))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", target, err)
	}
	defer func() { _ = conn.Close() }()
	a := &Answer{message: new(rlsv3.RateLimitResponse)}
	if err := conn.Invoke(ctx, "/"+serviceName+"/"+methodName, message, a); err != nil {
		return nil, fmt.Errorf("call %s: %w", target, err)
	}
	return a, nil
}

// callCodec sends bytes and reads Answers.
type callCodec struct{}

// Name is the content subtype.
func (callCodec) Name() string { return codec{}.Name() }

// Marshal takes the bytes of a request.
func (callCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.([]byte)
	if !ok {
		return nil, fmt.Errorf("rls: cannot send a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal fills an Answer.
func (callCodec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*Answer)
	if !ok {
		return fmt.Errorf("rls: cannot receive a %T", v)
	}
	return proto.Unmarshal(data.Materialize(), a.message)
}

// AppendRequest appends the wire form of r, whose Malformed is ignored.
func AppendRequest(b []byte, r *pipeline.Request) ([]byte, error) {
	e := encoder{b: b}
	e.string(requestDomain, r.Domain)
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		mark := e.begin(requestDescriptors)
		for _, entry := range d.Entries {
			inner := e.begin(descriptorEntries)
			e.string(entryKey, entry.Key)
			e.string(entryValue, entry.Value)
			e.end(inner)
		}
		if o := d.Limit; o != nil {
			if o.Unit > policy.Year {
				return nil, fmt.Errorf("descriptor %d: an override has no unit %d; units go from second to year", i, o.Unit)
			}
			inner := e.begin(descriptorLimit)
			e.uint(overrideRequests, uint64(o.RequestsPerUnit))
			e.uint(overrideUnit, uint64(o.Unit))
			if o.Multiplier > 1 {
				wrapper := e.begin(overrideMultiplier)
				e.uint(wrapperValue, uint64(o.Multiplier))
				e.end(wrapper)
			}
			e.end(inner)
		}
		if d.HasHits {
			inner := e.begin(descriptorHits)
			e.uint(wrapperValue, d.Hits)
			e.end(inner)
		}
		if d.Negative {
			e.uint(descriptorIsNegativeHits, protowire.EncodeBool(true))
		}
		e.end(mark)
	}
	e.uint(requestHits, uint64(r.HitsAddend))
	return e.b, nil
}

// Code is the overall code, 0 when the service left it unset, which Envoy
// takes for OK.
func (a *Answer) Code() pipeline.Code { return pipeline.Code(a.message.GetOverallCode()) }

// Text is the whole answer for people, one fact a line, always in the same
// order:
//
//	overall: OVER_LIMIT
//	descriptor 0: OVER_LIMIT, limit 10 per 2 MINUTE "per_user", remaining 0, reset 12s
//	response header: retry-after: 12
//	request header: x-tier: gold
//	body: {"status":429}
//	metadata: cause: "limit"
//
// What the service could have made up is quoted where it would break a line.
func (a *Answer) Text() string {
	var b strings.Builder
	m := a.message
	fmt.Fprintf(&b, "overall: %s\n", m.GetOverallCode())
	for i, s := range m.GetStatuses() {
		fmt.Fprintf(&b, "descriptor %d: %s", i, s.GetCode())
		if l := s.GetCurrentLimit(); l != nil {
			fmt.Fprintf(&b, ", limit %d per ", l.GetRequestsPerUnit())
			if l.GetUnitMultiplier() != nil {
				fmt.Fprintf(&b, "%d ", l.GetUnitMultiplier().GetValue())
			}
			b.WriteString(l.GetUnit().String())
			if l.GetName() != "" {
				fmt.Fprintf(&b, " %q", l.GetName())
			}
		}
		fmt.Fprintf(&b, ", remaining %d", s.GetLimitRemaining())
		if d := s.GetDurationUntilReset(); d != nil {
			// Not d.AsDuration, which ends at 292 years.
			fmt.Fprintf(&b, ", reset %d", d.GetSeconds())
			if d.GetNanos() != 0 {
				fmt.Fprintf(&b, ".%09d", d.GetNanos())
			}
			b.WriteString("s")
		}
		quota(&b, ", quota ", s.GetQuota())
		b.WriteByte('\n')
	}
	for _, h := range m.GetResponseHeadersToAdd() {
		fmt.Fprintf(&b, "response header: %s: %s\n", plain(h.GetKey()), plain(h.GetValue()+string(h.GetRawValue())))
	}
	for _, h := range m.GetRequestHeadersToAdd() {
		fmt.Fprintf(&b, "request header: %s: %s\n", plain(h.GetKey()), plain(h.GetValue()+string(h.GetRawValue())))
	}
	if len(m.GetRawBody()) > 0 {
		fmt.Fprintf(&b, "body: %s\n", plain(string(m.GetRawBody())))
	}
	if quota(&b, "quota: ", m.GetQuota()) {
		b.WriteByte('\n')
	}
	fields := m.GetDynamicMetadata().AsMap()
	keys := make([]string, 0, len(fields))
	for k := range fields {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		v, err := json.Marshal(fields[k])
		if err != nil { // a NaN, which JSON does not have
			v = []byte(fmt.Sprint(fields[k]))
		}
		fmt.Fprintf(&b, "metadata: %s: %s\n", plain(k), v)
	}
	return b.String()
}

func quota(b *strings.Builder, prefix string, q *rlsv3.RateLimitResponse_Quota) bool {
	if q == nil {
		return false
	}
	fmt.Fprintf(b, "%s%d", prefix, q.GetRequests())
	if t := q.GetValidUntil(); t != nil {
		fmt.Fprintf(b, " until %s", t.AsTime().UTC().Format(time.RFC3339Nano))
	}
	if q.GetId() != "" {
		fmt.Fprintf(b, " id %q", q.GetId())
	}
	return true
}

// plain is s as it is when it is one printable line, else quoted.
func plain(s string) string {
	if q := fmt.Sprintf("%q", s); strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`) != s {
		return q
	}
	return s
}
