package e2e

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weir-rl/weir/internal/envoytest"
	"github.com/weir-rl/weir/internal/parts"
)

const (
	quotaExceeded = `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":429,` +
		`"detail":"The limit for these requests is used up.","violated-policies":["%s"],"retry_after":%d}`
	reducedCapacity = `{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Temporarily reduced capacity","status":503,` +
		`"detail":"The service that counts requests cannot be reached.","violated-policies":["%s"],"retry_after":%d}`
)

// P-READ: a user's 20 reads pass, the next is denied with everything that a client can use, and half a second later
// there is room for one more.
func TestAllowedThenDenied(t *testing.T) {
	w := northstar.start(t)
	counted := w.count(t, "open")
	read := func() envoytest.Response { return w.get(t, "/catalog", "x-user-id", name(t)) }
	for i := range 20 {
		answered(t, fmt.Sprintf("read %d", i+1), read(), 200, map[string]string{
			"content-type":          "text/plain",
			"x-ratelimit-limit":     `2, 2;w=1;name="P-READ"`,
			"x-ratelimit-remaining": fmt.Sprint(19 - i),
			"x-ratelimit-reset":     fmt.Sprint((i + 2) / 2), // To a full bucket, rounded up.
		}, "hello from Northstar\n")
	}
	denial := map[string]string{
		"content-type":          "application/problem+json",
		"cache-control":         "no-store",
		"retry-after":           "1",
		"retry-after-ms":        "500",
		"x-envoy-ratelimited":   "true",
		"x-ratelimit-limit":     `2, 2;w=1;name="P-READ"`,
		"x-ratelimit-remaining": "0",
		"x-ratelimit-reset":     "1",
	}
	answered(t, "read 21", read(), 429, denial, fmt.Sprintf(quotaExceeded, "P-READ", 1))
	w.advance(499 * time.Millisecond)
	denial["retry-after-ms"] = "1"
	answered(t, "read 22", read(), 429, denial, fmt.Sprintf(quotaExceeded, "P-READ", 1))
	w.advance(time.Millisecond)
	if r := read(); r.Status != 200 {
		t.Errorf("read 23 = %d after the wait that the denial asked for, want 200", r.Status)
	}
	counted(21, 2)
}

// P-ANON: callers without a user share what their address may, whatever they claim about it.
func TestAddressOfTheCaller(t *testing.T) {
	w := northstar.start(t)
	counted := w.count(t, "open")
	for i := range 22 {
		want := 200
		if i >= 20 {
			want = 429
		}
		r := w.get(t, "/catalog", "x-forwarded-for", fmt.Sprintf("203.0.113.%d", i))
		if r.Status != want {
			t.Errorf("call %d = %d, want %d", i+1, r.Status, want)
		}
		if got, want := r.Header.Get("x-ratelimit-limit"), `20, 20;w=10;name="P-ANON"`; got != want {
			t.Errorf("x-ratelimit-limit of call %d = %s, want %s", i+1, got, want)
		}
	}
	counted(20, 2)
}

// P-EXPORT: the route's cost of 10 is taken out of 20, and a denied export names the 5 seconds until 10 more are
// there. The tenant's other budget is not charged for it.
func TestCostOfAnExport(t *testing.T) {
	w := northstar.start(t)
	counted := w.count(t, "closed")
	tenant := name(t)
	export := func() envoytest.Response {
		return envoytest.HTTP1(t, w.envoy.Addr("ingress"), envoytest.Request("POST", "/reports/export", "all", "x-tenant", tenant))
	}
	allowed := func(what string, left, reset int) {
		t.Helper()
		answered(t, what, export(), 200, map[string]string{
			"content-type":          "text/plain",
			"x-ratelimit-limit":     `2, 2;w=1;name="P-EXPORT", 1000;w=60;name="P-TENANT"`,
			"x-ratelimit-remaining": fmt.Sprint(left),
			"x-ratelimit-reset":     fmt.Sprint(reset),
		}, "hello from Northstar\n")
	}
	denied := func(what string, retry time.Duration) {
		t.Helper()
		seconds := int((retry + time.Second - 1) / time.Second)
		answered(t, what, export(), 429, map[string]string{
			"content-type":          "application/problem+json",
			"cache-control":         "no-store",
			"retry-after":           fmt.Sprint(seconds),
			"retry-after-ms":        fmt.Sprint(retry.Milliseconds()),
			"x-envoy-ratelimited":   "true",
			"x-ratelimit-limit":     `2, 2;w=1;name="P-EXPORT", 1000;w=60;name="P-TENANT"`,
			"x-ratelimit-remaining": "0",
			"x-ratelimit-reset":     fmt.Sprint(seconds),
		}, fmt.Sprintf(quotaExceeded, "P-EXPORT", seconds))
	}
	allowed("the first export", 10, 5)
	allowed("the second", 0, 10)
	before := w.stored(t, "northstar", "tenant", tenant)
	denied("the third", 5*time.Second)
	w.advance(4999 * time.Millisecond)
	denied("the fourth", time.Millisecond)
	if after := w.stored(t, "northstar", "tenant", tenant); before == nil || after != before {
		t.Errorf("the tenant's minute holds %q after two denied exports, want %q as before them", after, before)
	}
	w.advance(time.Millisecond)
	allowed("the fifth", 0, 10)
	counted(3, 2)
}

// While Redis is down, a rule that is closed then is answered 503 by the mapper of our Envoy config: nobody is over a
// limit. It takes no restart to go on.
func TestClosedRuleWithoutRedis(t *testing.T) {
	w := northstar.alone(t)
	counted := w.count(t, "closed")
	export := func() (envoytest.Response, error) {
		return envoytest.SendHTTP1(w.envoy.Addr("ingress"), envoytest.Request("POST", "/reports/export", "all", "x-tenant", "atlas"))
	}
	if r, err := export(); err != nil || r.Status != 200 {
		t.Fatalf("an export with Redis = %d, %v, want 200", r.Status, err)
	}
	w.redis.Stop(t)
	r, err := export()
	if err != nil {
		t.Fatal(err)
	}
	answered(t, "an export without Redis", r, 503, map[string]string{
		"content-type":          "application/problem+json",
		"cache-control":         "no-store",
		"retry-after":           "1",
		"retry-after-ms":        "1000",
		"x-envoy-ratelimited":   "true",
		"x-ratelimit-limit":     `2, 2;w=1;name="P-EXPORT", 1000;w=60;name="P-TENANT"`,
		"x-ratelimit-remaining": "0",
		"x-ratelimit-reset":     "1",
	}, fmt.Sprintf(reducedCapacity, "P-EXPORT", 1))
	lines := w.envoy.WaitAccessLog(t, 2)
	want := map[string]any{
		"method": "POST", "path": "/reports/export", "code": 503.0, "flags": "RL", "details": "request_rate_limited", "retry_after": "1",
		"limiter": map[string]any{
			"source": "fallback", "cause": "unavailable", "rule": "P-EXPORT", "policy_version": "0", "deny_as": "unavailable",
		},
	}
	if d := cmp.Diff(want, lines[1]); d != "" {
		t.Errorf("access log of the 503 (-want +got):\n%s", d)
	}
	counted(1, 1)

	w.redis.Restart(t)
	err = parts.Poll(t.Context(), patience, func() error {
		r, err := export()
		if err == nil && r.Status != 200 {
			err = fmt.Errorf("an export = %d", r.Status)
		}
		return err
	})
	if err != nil {
		t.Errorf("Redis is back, but: %v", err)
	}
}

// What a caller did wrong and what nobody limits keep their answers beside the mapper that makes 503s.
func TestMapperLeavesOtherAnswers(t *testing.T) {
	w := northstar.start(t)
	for _, c := range []struct {
		method, path string
		want         int
	}{{"POST", "/reports/export", 400}, {"GET", "/nothing", 404}} {
		r := envoytest.HTTP1(t, w.envoy.Addr("ingress"), envoytest.Request(c.method, c.path, ""))
		if r.Status != c.want || r.Header.Get("retry-after") != "" {
			t.Errorf("%s %s = %d with %v, want %d", c.method, c.path, r.Status, r.Header, c.want)
		}
	}
}

// A denial's metadata reach Envoy's access log.
func TestAccessLogSaysWhy(t *testing.T) {
	w := routes.start(t)
	w.statuses(t, 3, "/user", "x-user", name(t))
	w.get(t, "/user", "x-user", name(t), "x-test", name(t))
	want := `{"code":429,"details":"request_rate_limited","flags":"RL","id":"TestAccessLogSaysWhy",` +
		`"limiter":{"cause":"limit","policy_version":"0","rule":"per-user","source":"authority"}}`
	if got, err := json.Marshal(w.logged(t, name(t))); err != nil || string(got) != want {
		t.Errorf("access log line = %s (%v)\nwant %s", got, err, want)
	}
}
