package envoytest_test

import (
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/envoytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNorthstarWithoutASidecar runs the shipped config with nobody on the sidecar's socket: open routes pass, closed
// ones are denied with 503 by Envoy alone, and what is no limit stays what it is.
func TestNorthstarWithoutASidecar(t *testing.T) {
	e := envoytest.Start(t, envoytest.Config{File: "envoy/northstar.yaml", Concurrency: 2})
	ingress := e.Addr("ingress")

	open := envoytest.HTTP1(t, ingress, envoytest.Request("GET", "/catalog", "", "x-user-id", "U-17"))
	if open.Status != 200 || string(open.Body) != "hello from Northstar\n" {
		t.Errorf("GET /catalog = %d %q, want the API's 200", open.Status, open.Body)
	}

	closed := envoytest.HTTP1(t, ingress, envoytest.Request("POST", "/reports/export", "all", "x-tenant", "atlas"))
	if closed.Status != 503 || string(closed.Body) != `{"title":"Rate limiter unreachable","status":503}` {
		t.Errorf("POST /reports/export = %d %q, want the mapper's 503", closed.Status, closed.Body)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/problem+json", "Retry-After": "2", "Cache-Control": "no-store",
	} {
		if got := closed.Header.Values(name); len(got) != 1 || got[0] != want {
			t.Errorf("%s of the 503 is %q, want one %q", name, got, want)
		}
	}

	// The mapper must not turn other local replies into 503.
	if r := envoytest.HTTP1(t, ingress, envoytest.Request("POST", "/reports/export", "")); r.Status != 400 {
		t.Errorf("an export without tenant = %d, want 400", r.Status)
	}
	if r := envoytest.HTTP1(t, ingress, envoytest.Request("GET", "/nothing", "")); r.Status != 404 {
		t.Errorf("an unknown path = %d, want 404", r.Status)
	}

	e.WaitStat(t, "cluster.app.ratelimit.open.failure_mode_allowed", 1)
	e.WaitStat(t, "cluster.app.ratelimit.closed.error", 1)
	if got := e.Stat(t, "cluster.app.ratelimit.open.ok"); got != 0 {
		t.Errorf("a counter that nothing has used is %d, want 0", got)
	}

	lines := e.WaitAccessLog(t, 4)
	flags := map[any]any{}
	for _, line := range lines {
		flags[line["path"]] = line["flags"]
	}
	if len(lines) != 4 || flags["/catalog"] != "-" {
		t.Errorf("access log = %v, want 4 lines, no flag for the request that passed", lines)
	}
	if e.Admin() == "" || e.PID() == 0 || !strings.HasPrefix(e.Addr("app"), e.Dir()) {
		t.Errorf("admin %q, process %d, upstream %q", e.Admin(), e.PID(), e.Addr("app"))
	}
}

// TestClientsSendRawBytes shows on an echoing Envoy that both clients change nothing on the way.
func TestClientsSendRawBytes(t *testing.T) {
	e := envoytest.Start(t, envoytest.Config{Text: echo})
	r := envoytest.HTTP1(t, e.Addr("ingress"), envoytest.Request("GET", "/a", "", "x-echo", "a\xffb"))
	if got := r.Header.Get("x-echoed"); got != "a\xffb" {
		t.Errorf("HTTP/1 header came back as %q, want the byte 0xFF in it", got)
	}
	long := strings.Repeat("\xff", 40_000) // More than two frames.
	r = envoytest.HTTP2(t, e.Addr("ingress"), "GET", "/p\xff", "x-echo", long)
	if got := r.Header.Get("x-echoed"); got != long {
		t.Errorf("HTTP/2 header came back with %d bytes, want %d times 0xFF", len(got), len(long))
	}
	if got := r.Header.Get("x-path"); got != "/p\xff" {
		t.Errorf("HTTP/2 path came back as %q, want the byte 0xFF in it", got)
	}
	if got := string(r.Body); got != "echo\n" {
		t.Errorf("HTTP/2 body = %q, want echo", got)
	}
	if r := envoytest.HTTP1(t, e.Addr("ingress"), envoytest.Request("HEAD", "/a", "")); r.Status != 200 || len(r.Body) != 0 {
		t.Errorf("HEAD = %d with %d bytes, want 200 without a body", r.Status, len(r.Body))
	}
	if _, err := envoytest.SendHTTP2(e.Addr("ingress"), "GET", "/", "bad name", "x"); err == nil {
		t.Error("an HTTP/2 request with a blank in a header's name got an answer, want the reset as an error")
	}
}

func TestRender(t *testing.T) {
	c := envoytest.Config{
		Text:    "/tmp/weir/x port_value: 10000 port_value: 9901 { timeout: 0.05s, connect_timeout: 0.05s } KEY",
		Port:    7,
		Timeout: 250 * time.Millisecond,
		Replace: []string{"KEY", "value"},
	}
	got, err := c.Render("/d")
	want := "/d/x port_value: 7 port_value: 0 { timeout: 0.25s, connect_timeout: 0.05s } value"
	if err != nil || got != want {
		t.Errorf("Render = %q, %v, want %q", got, err, want)
	}
	c.Replace = []string{"ABSENT", "value"}
	if _, err := c.Render("/d"); err == nil || !strings.Contains(err.Error(), `"ABSENT"`) {
		t.Errorf("Render with something to replace that is not there: %v, want an error that names it", err)
	}
	for _, c := range []envoytest.Config{{}, {File: "envoy/northstar.yaml", Text: "x"}, {File: "envoy/none.yaml"}} {
		if _, err := c.Render("/d"); err == nil {
			t.Errorf("Render of %+v gave no error", c)
		}
	}
}

func TestValidate(t *testing.T) {
	if err := envoytest.Validate(t, envoytest.Config{File: "envoy/northstar.yaml"}); err != nil {
		t.Errorf("the shipped config: %v", err)
	}
	bad := envoytest.Config{File: "envoy/northstar.yaml", Replace: []string{"failure_mode_deny: true", "failure_mode_denied: true"}}
	if err := envoytest.Validate(t, bad); err == nil || !strings.Contains(err.Error(), "failure_mode_denied") {
		t.Errorf("an unknown field: %v, want Envoy's complaint about it", err)
	}
}

func TestLaunchShowsWhyEnvoyDoesNotStart(t *testing.T) {
	_, err := envoytest.Launch(envoytest.Config{Text: "admin: nonsense"})
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("Launch of a broken config: %v, want Envoy's own words", err)
	}
}

// echo answers with what it was sent, in headers.
const echo = `
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}
static_resources:
  listeners:
  - name: ingress
    address: {socket_address: {address: 127.0.0.1, port_value: 10000}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              routes:
              - match: {prefix: /}
                direct_response: {status: 200, body: {inline_string: "echo\n"}}
                response_headers_to_add:
                - header: {key: x-echoed, value: "%REQ(X-ECHO)%"}
                - header: {key: x-path, value: "%REQ(:PATH)%"}
`
