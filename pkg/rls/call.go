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

// Client calls one rate-limit service, Weir or another one, over one
// connection that it opens when needed. It is safe for concurrent use.
type Client struct {
	conn   *grpc.ClientConn
	target string
}

// NewClient makes a client of the service at target, which is host:port or
// unix:///path, in plain text. It does not connect yet.
func NewClient(target string) (*Client, error) {
	dial := target
	if !strings.HasPrefix(dial, "unix:") {
		dial = "passthrough:///" + dial
	}
	conn, err := grpc.NewClient(dial,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(callCodec{}), grpc.MaxCallRecvMsgSize(DefaultMaxRecvMsgSize)))
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", target, err)
	}
	return &Client{conn: conn, target: target}, nil
}

// Call sends one request and waits for the answer until ctx ends. Strings are
// sent as they are, valid UTF-8 or not, as Envoy does. The error carries the
// gRPC status; a week as the unit of an override cannot be sent.
func (c *Client) Call(ctx context.Context, r *pipeline.Request) (*Answer, error) {
	message, err := AppendRequest(nil, r)
	if err != nil {
		return nil, fmt.Errorf("call %s: %w", c.target, err)
	}
	a := &Answer{message: new(rlsv3.RateLimitResponse)}
	if err := c.conn.Invoke(ctx, "/"+serviceName+"/"+methodName, message, a); err != nil {
		return nil, fmt.Errorf("call %s: %w", c.target, err)
	}
	return a, nil
}

// Close ends the connection, and with it the calls on it.
func (c *Client) Close() error { return c.conn.Close() }

// Call makes one call over a connection of its own, as Client.Call does.
func Call(ctx context.Context, target string, r *pipeline.Request) (_ *Answer, err error) {
	c, err := NewClient(target)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	return c.Call(ctx, r)
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

// Code is the overall code, 0 when the service left it unset or made one up,
// which Envoy takes for OK.
func (a *Answer) Code() pipeline.Code {
	switch a.message.GetOverallCode() {
	case rlsv3.RateLimitResponse_OK:
		return pipeline.OK
	case rlsv3.RateLimitResponse_OVER_LIMIT:
		return pipeline.OverLimit
	}
	return 0
}

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
