package rls_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/policy"
	"github.com/weir-rl/weir/pkg/rls"
)

// seen is a server and the last request that it decided, copied.
func seen(t *testing.T) (*running, func() pipeline.Request) {
	t.Helper()
	var last atomic.Pointer[pipeline.Request]
	s := start(t, rls.Config{}, rls.Deps{Decide: func(ctx context.Context, d *pipeline.Decision) {
		r := *d.Request
		r.Descriptors = nil
		for _, desc := range d.Request.Descriptors {
			desc.Entries = append([]limit.Entry(nil), desc.Entries...)
			if desc.Limit != nil {
				o := *desc.Limit
				desc.Limit = &o
			}
			r.Descriptors = append(r.Descriptors, desc)
		}
		last.Store(&r)
		allow(ctx, d)
	}})
	return s, func() pipeline.Request { return *last.Load() }
}

// TestWhatAClientCanCauseIsDecided sends what callers can make of a request:
// each is answered, and reaches Decide as it was sent.
func TestWhatAClientCanCauseIsDecided(t *testing.T) {
	s, last := seen(t)
	for _, c := range []struct {
		name string
		r    pipeline.Request
	}{
		{"0xFF in a value", *request([]limit.Entry{{Key: "xff", Value: "10.0.0.1\xff"}})},
		{"0xFF in a key", *request([]limit.Entry{{Key: "\xff", Value: "v"}})},
		{"0xFF in the domain", pipeline.Request{Domain: "\xff", Descriptors: []pipeline.Descriptor{{}}}},
		{"nul and line breaks", *request([]limit.Entry{{Key: "k", Value: "\x00\r\n"}})},
		{"no entries", *request(nil)},
		{"an empty entry", *request([]limit.Entry{{}})},
		{"a header of 60 KB", *request([]limit.Entry{{Key: "k", Value: strings.Repeat("x", 60<<10)}})},
		{"nan hits", pipeline.Request{Domain: "test", Descriptors: []pipeline.Descriptor{{Hits: 1 << 63, HasHits: true}}}},
		{"a peek", pipeline.Request{Domain: "test", HitsAddend: 9, Descriptors: []pipeline.Descriptor{{HasHits: true}}}},
		{"negative hits", pipeline.Request{Domain: "test", Descriptors: []pipeline.Descriptor{{Hits: 3, HasHits: true, Negative: true}}}},
		{"request hits", pipeline.Request{Domain: "test", HitsAddend: 1<<32 - 1, Descriptors: []pipeline.Descriptor{{}}}},
		{"an override", pipeline.Request{Domain: "test", Descriptors: []pipeline.Descriptor{{
			Limit: &pipeline.Override{RequestsPerUnit: 0, Unit: policy.Year, Multiplier: 12},
		}}}},
	} {
		a, err := rls.Call(within(t), s.TCPAddr(), &c.r)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if a.Code() != pipeline.OK {
			t.Errorf("%s: %s", c.name, a.Text())
		}
		if diff := cmp.Diff(c.r, last()); diff != "" {
			t.Errorf("%s (-sent +decided):\n%s", c.name, diff)
		}
	}
}

func TestTooManyDescriptorsAreDenied(t *testing.T) {
	s, last := seen(t)
	r := request()
	for range 80 {
		r.Descriptors = append(r.Descriptors, pipeline.Descriptor{
			Entries: []limit.Entry{{Key: "k", Value: strings.Repeat("\xff", 60<<10)}},
		})
	}
	a, err := rls.Call(within(t), s.TCPAddr(), r)
	if err != nil {
		t.Fatal(err)
	}
	if a.Code() != pipeline.OverLimit || !strings.Contains(a.Text(), "cause: \"malformed\"") {
		t.Errorf("80 descriptors of 60 KB are answered\n%s", a.Text())
	}
	if n := len(last().Descriptors); n != rls.MaxDescriptors {
		t.Errorf("descriptors kept = %d, want %d", n, rls.MaxDescriptors)
	}
	r = request(make([]limit.Entry, rls.MaxEntries+1))
	if a, err := rls.Call(within(t), s.TCPAddr(), r); err != nil || a.Code() != pipeline.OverLimit {
		t.Errorf("too many entries are answered %v, %v, want OVER_LIMIT", a, err)
	}
	if got := s.metric(t, "weir_rls_malformed_total"); got != 2 {
		t.Errorf("malformed counted = %v, want 2", got)
	}
}

// TestLargestMessage holds the default bound: the largest header block that
// Envoy takes, doubled, in each of 128 descriptors.
func TestLargestMessage(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	r := request()
	for range 128 {
		r.Descriptors = append(r.Descriptors, pipeline.Descriptor{
			Entries: []limit.Entry{{Key: "k", Value: strings.Repeat("x", 60<<10)}, {Key: "k2", Value: strings.Repeat("y", 59<<10)}},
		})
	}
	if a, err := rls.Call(within(t), s.TCPAddr(), r); err != nil || a.Code() != pipeline.OverLimit {
		t.Errorf("128 descriptors of 119 KB are answered %v, %v, want OVER_LIMIT", a, err)
	}
	r = request([]limit.Entry{{Key: "k", Value: strings.Repeat("x", rls.DefaultMaxRecvMsgSize)}})
	if _, err := rls.Call(within(t), s.TCPAddr(), r); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message above the bound: %v, want ResourceExhausted", err)
	}
}

// frames speaks HTTP/2 as Envoy does and counts what comes back.
type frames struct {
	conn    net.Conn
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
	next    uint32
	pings   int
}

func newFrames(t *testing.T, addr string) *frames {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(within(t), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	f := &frames{conn: conn, framer: http2.NewFramer(conn, conn), next: 1}
	f.encoder = hpack.NewEncoder(&f.block)
	if _, err := conn.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	if err := f.framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	return f
}

// call sends one message and reads until its stream ends.
func (f *frames) call(t *testing.T, message []byte) {
	t.Helper()
	id := f.next
	f.next += 2
	f.block.Reset()
	for _, h := range [][2]string{
		{":method", "POST"},
		{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
		{":authority", "rls"},
		{":scheme", "http"},
		{"te", "trailers"},
		{"content-type", "application/grpc"},
	} {
		if err := f.encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	n := len(message)
	data := append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, message...)
	for len(data) > 0 {
		part := data[:min(len(data), 16<<10)]
		data = data[len(part):]
		if err := f.framer.WriteData(id, len(data) == 0, part); err != nil {
			t.Fatal(err)
		}
	}
	for {
		frame, err := f.framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			f.pings++
			if err := f.framer.WritePing(true, frame.Data); err != nil {
				t.Fatal(err)
			}
		case *http2.SettingsFrame:
			if frame.IsAck() {
				continue
			}
			if err := f.framer.WriteSettingsAck(); err != nil {
				t.Fatal(err)
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			t.Fatalf("got %v", frame)
		case *http2.HeadersFrame:
			if frame.StreamID == id && frame.StreamEnded() {
				return
			}
		}
	}
}

func TestFixedWindowsSendNoPings(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	f := newFrames(t, s.TCPAddr())
	small, err := rls.AppendRequest(nil, request([]limit.Entry{{Key: "k", Value: "v"}}))
	if err != nil {
		t.Fatal(err)
	}
	large, err := rls.AppendRequest(nil, request([]limit.Entry{{Key: "k", Value: strings.Repeat("x", 60<<10)}}))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		f.call(t, small)
		f.call(t, large) // Envoy never waits for a window of 64 KiB here
	}
	if f.pings != 0 {
		t.Errorf("the server sent %d PING frames in 100 calls, want none", f.pings)
	}
	if got := s.metric(t, "weir_rls_requests_total", "code", "ok"); got != 100 {
		t.Errorf("requests answered = %v, want 100", got)
	}
}

// TestPingsOfEnvoyAreTaken: Envoy's connection_keepalive may ping every few
// seconds or faster, and grpc's default would close the connection.
func TestPingsOfEnvoyAreTaken(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	f := newFrames(t, s.TCPAddr())
	message, err := rls.AppendRequest(nil, request([]limit.Entry{{Key: "k", Value: "v"}}))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := f.framer.WritePing(false, [8]byte{1}); err != nil {
			t.Fatal(err)
		}
		f.call(t, message)
	}
}

// TestBytesThatAreNoMessage sends what is no RateLimitRequest.
func TestBytesThatAreNoMessage(t *testing.T) {
	s := start(t, rls.Config{}, rls.Deps{})
	f := newFrames(t, s.TCPAddr())
	for _, b := range [][]byte{{0xff}, {0x0a, 0x05, 'x'}, []byte("GET / HTTP/1.1\r\n")} {
		f.call(t, b)
	}
	if got := s.metric(t, "weir_rls_decode_errors_total"); got != 3 {
		t.Errorf("decode errors counted = %v, want 3", got)
	}
}
