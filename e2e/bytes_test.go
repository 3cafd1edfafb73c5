package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/envoytest"
)

// limited sends a request until its budget is used up, and three times more. The route lets pass what the sidecar
// fails to answer, so this shows that nothing in the request switches the limiter off.
func (w *world) limited(t *testing.T, budget int, send func() envoytest.Response) {
	t.Helper()
	counted := w.count(t, "open")
	for i := range budget + 3 {
		want := 200
		if i >= budget {
			want = 429
		}
		if r := send(); r.Status != want {
			t.Errorf("call %d of a budget of %d = %d, want %d", i+1, budget, r.Status, want)
		}
	}
	counted(uint64(budget), 3)
}

// counts shows that the budget was that of exactly these bytes: Redis holds the key that they make.
func (w *world) counts(t *testing.T, entries ...string) {
	t.Helper()
	if w.stored(t, "e2e", entries...) == nil {
		t.Errorf("Redis holds no key for %q", entries)
	}
}

// One byte that is no text makes a stock decoder refuse the whole request, and Envoy then lets the caller pass. Here
// the byte is a part of the value like any other, and another byte is another value.
func TestBadByteInAHeader(t *testing.T) {
	w := routes.start(t)
	for _, value := range []string{"\xff", "\xfe", "", "a\xffb", "a\xfeb", "a\xc3", "a\xef\xbf\xbdb"} {
		value := name(t) + value
		t.Run(fmt.Sprintf("%q", value[len(t.Name()):]), func(t *testing.T) {
			w.limited(t, 3, func() envoytest.Response { return w.get(t, "/open/header", "x-raw", value) })
			w.counts(t, "raw", value)
		})
	}
}

func TestBadByteInXForwardedFor(t *testing.T) {
	w := routes.start(t)
	for _, value := range []string{"203.0.113.\xff", "\xff, 203.0.113.5", "203.0.113.5"} {
		t.Run(fmt.Sprintf("%q", value), func(t *testing.T) {
			w.limited(t, 3, func() envoytest.Response {
				return w.get(t, "/open/xff", "x-user", name(t), "x-forwarded-for", value)
			})
		})
	}
}

func TestBadByteInAQueryValue(t *testing.T) {
	w := routes.start(t)
	for sent, value := range map[string]string{
		"%ff": "\xff", "%FE": "\xfe", "%00": "\x00", "a%c3%28b": "a\xc3(b", "%0d%0a": "\r\n", "+": "+",
	} {
		t.Run(sent, func(t *testing.T) {
			w.limited(t, 3, func() envoytest.Response { return w.get(t, "/open/query?q=query"+sent) })
			w.counts(t, "raw", "query"+value)
		})
	}
}

// Over HTTP/2 Envoy takes a raw byte in :path too.
func TestBadByteInAnHTTP2Path(t *testing.T) {
	w := routes.start(t)
	for _, value := range []string{"\xff", "a\xfe", "text"} {
		t.Run(fmt.Sprintf("%q", value), func(t *testing.T) {
			w.limited(t, 3, func() envoytest.Response {
				return envoytest.HTTP2(t, w.envoy.Addr("ingress"), "GET", "/open/path"+value)
			})
			w.counts(t, "raw", "/open/path"+value)
		})
	}
}

// A value of 60 KB is keyed like a short one: what differs in its last byte is another budget.
func TestLongHeader(t *testing.T) {
	w := routes.start(t)
	long := name(t) + strings.Repeat("x", 60<<10)
	for _, value := range []string{long + "a", long + "b"} {
		w.limited(t, 3, func() envoytest.Response { return w.get(t, "/open/header", "x-raw", value) })
	}
}

// 64 descriptors of 70 KB, above grpc's bound of 4 MiB in one message, are all counted: each request takes 64 of 192.
func TestMessageAboveFourMiB(t *testing.T) {
	w := large.start(t)
	value := name(t) + strings.Repeat("x", 70<<10)
	w.limited(t, 3, func() envoytest.Response { return w.get(t, "/open/64", "x-raw", value) })
}

// 80 descriptors of 60 KB are more than a request may have. That they are too many is an answer, and a denial.
func TestTooManyDescriptors(t *testing.T) {
	w := large.start(t)
	counted := w.count(t, "open")
	value := name(t) + strings.Repeat("x", 60<<10)
	for range 3 {
		answered(t, "80 descriptors", w.get(t, "/open/80", "x-raw", value), 429, map[string]string{
			"content-type": "application/problem+json", "cache-control": "no-store", "x-envoy-ratelimited": "true",
		}, malformed(""))
	}
	counted(0, 3)
	if got := w.stored(t, "e2e", "big", value); got != nil {
		t.Errorf("Redis holds %q, want nothing: none of the descriptors was charged", got)
	}
}
