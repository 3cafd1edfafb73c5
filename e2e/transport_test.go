package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/envoytest"
)

// The service listens on TCP and on a Unix socket at once, and both lead to the same budgets.
func TestTCPAndUnixSocket(t *testing.T) {
	w := routes.start(t)
	counted := w.count(t, "closed", "tcp")
	const overUnix, overTCP = "cluster.weir.upstream_rq_total", "cluster.weir-tcp.upstream_rq_total"
	unix, tcp := w.envoy.Stat(t, overUnix), w.envoy.Stat(t, overTCP)
	var got []string
	for _, path := range []string{"/user", "/user/tcp", "/user", "/user/tcp", "/user", "/user/tcp"} {
		got = append(got, fmt.Sprint(w.get(t, path, "x-user", name(t)).Status))
	}
	if got, want := strings.Join(got, " "), "200 200 200 429 429 429"; got != want {
		t.Errorf("by turns over both: %s, want %s", got, want)
	}
	counted(3, 3)
	w.envoy.WaitStat(t, overUnix, unix+3)
	w.envoy.WaitStat(t, overTCP, tcp+3)
}

// A gRPC caller gets its denial as gRPC has it: a status, the reason, and our headers among the trailers. Which
// status is Envoy's setting: 14, which many clients repeat at once, or 8.
func TestGRPCCaller(t *testing.T) {
	for _, c := range []struct{ service, filter, status string }{
		{"Service", "closed", "14"},
		{"Exhausted", "tcp", "8"},
	} {
		t.Run(c.service, func(t *testing.T) {
			w := routes.start(t)
			counted := w.count(t, c.filter)
			call := func() envoytest.Response {
				return envoytest.HTTP2(t, w.envoy.Addr("ingress"), "POST", "/e2e."+c.service+"/Do",
					"content-type", "application/grpc", "te", "trailers", "x-user", name(t))
			}
			for range 3 {
				if r := call(); r.Status != 200 || r.Header.Get("grpc-message") != "hello%0A" {
					t.Errorf("a call within the limit: %d %v, want the API's answer", r.Status, r.Header)
				}
			}
			message := strings.ReplaceAll(fmt.Sprintf(quotaExceeded, "per-user", 40), "%", "%25")
			answered(t, "a call beyond the limit", call(), 200, map[string]string{
				"content-type":          "application/grpc",
				"grpc-status":           c.status,
				"grpc-message":          message,
				"cache-control":         "no-store",
				"retry-after":           "40",
				"retry-after-ms":        "39750",
				"x-envoy-ratelimited":   "true",
				"x-ratelimit-limit":     `3, 3;w=60;name="per-user"`,
				"x-ratelimit-remaining": "0",
				"x-ratelimit-reset":     "40",
			}, "")
			counted(3, 1)
		})
	}
}
