package e2e

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/parts"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
	"github.com/weir-rl/weir/pkg/pipeline"
	"github.com/weir-rl/weir/pkg/rls"
)

const storePolicy = `
domain: fleet
descriptors:
  - key: closed
    rate_limit: {unit: year, requests_per_unit: 5, on_store_failure: closed}
  - key: open
    rate_limit: {unit: year, requests_per_unit: 5, on_store_failure: open}
`

// TestStoreThatCannotAnswer shows what a caller of a whole sidecar sees of a store that is there and will not do: an
// answer within the deadline by the rule's failure mode, never an error, and why in the metrics.
func TestStoreThatCannotAnswer(t *testing.T) {
	for _, c := range []struct {
		name  string
		class limit.Class
		store func(t *testing.T) (url string, ready func(*weir))
	}{
		{"wrong password", limit.ClassAuth, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t, redistest.WithPassword("right"))
			return "unix://:wrong@" + redis.Socket(), nil
		}},
		{"no password", limit.ClassAuth, func(t *testing.T) (string, func(*weir)) {
			return redistest.Start(t, redistest.WithPassword("right")).URL(), nil
		}},
		{"not a Redis", limit.ClassBadReply, func(t *testing.T) (string, func(*weir)) {
			return "redis://" + webServer(t), nil
		}},
		{"nobody there", limit.ClassRefused, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t)
			redis.Kill(t)
			return redis.URL(), nil
		}},
		{"out of memory", limit.ClassOutOfMemory, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t)
			redis.MustDo(t, "SET", "big", strings.Repeat("x", 1<<20))
			redis.MustDo(t, "CONFIG", "SET", "maxmemory", "1mb")
			return redis.URL(), nil
		}},
		{"a replica", limit.ClassReadOnly, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t)
			redis.MustDo(t, "REPLICAOF", "127.0.0.1", "1") // Its primary is never there, and it serves what it has.
			return redis.URL(), nil
		}},
		{"loading", limit.ClassLoading, func(t *testing.T) (string, func(*weir)) {
			return loadingRedis(t).URL(), nil
		}},
		{"stalled", limit.ClassTimeout, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t)
			return redis.URL(), func(w *weir) {
				// Connected, so that the debit is written and its fate unknown.
				eventually(t, "before the stall the authority does not decide", func() bool {
					_, answer := ask(t, w, "closed")
					return said(answer, "source") == "authority"
				})
				redis.Pause(t)
				t.Cleanup(func() { redis.Resume(t) })
			}
		}},
		{"a newer layout", limit.ClassLayout, func(t *testing.T) (string, func(*weir)) {
			redis := redistest.Start(t)
			return redis.URL(), func(w *weir) {
				state := limit.AppendState(nil, &limit.State{Algorithm: limit.FixedWindow, End: 1, Length: 1})
				state[1] = limit.Layout + 1
				for _, rule := range []string{"closed", "open"} {
					key := w.key(t, "fleet", rule, "one")
					redis.MustDo(t, "SET", key, string(state))
					t.Cleanup(func() {
						if got := redis.MustDo(t, "GET", key); got != string(state) {
							t.Errorf("the newer state of %s is %q now, want it untouched", rule, got)
						}
					})
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, ready := c.store(t)
			settings := settings(url, "fleet", "", writePolicy(t, storePolicy))
			if c.class == limit.ClassTimeout {
				settings.Decision.Budget = 200 * time.Millisecond // It is what ends the wait, so it is waited for.
			}
			w, err := startWeir(settings)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := w.close(); err != nil {
					t.Error(err)
				}
			})
			if ready != nil {
				ready(w)
			}
			var code pipeline.Code
			var answer *rls.Answer
			// On busy cores a call may end before it was sent, and is of another class then.
			eventually(t, "the class is not counted", func() bool {
				code, answer = ask(t, w, "closed")
				return w.counter(t, "weir_authority_errors_total", "class", c.class.String()) > 0
			})
			if code != pipeline.OverLimit || said(answer, "deny_as") != "unavailable" || said(answer, "cause") != "unavailable" ||
				said(answer, "source") != "fallback" || !strings.Contains(answer.Text(), `"status":503`) {
				t.Errorf("the closed rule, want a denial as unavailable:\n%s", answer.Text())
			}
			code, answer = ask(t, w, "open")
			if code != pipeline.OK || said(answer, "cause") != "allowed_by_mode" || said(answer, "source") != "fallback" {
				t.Errorf("the open rule, want it allowed by its mode:\n%s", answer.Text())
			}
			if n := w.counter(t, "weir_rls_requests_total", "code", "error"); n != 0 {
				t.Errorf("%d calls ended in an error", n)
			}
			t.Logf("classes %v", classesOf(t, w))
		})
	}
}

// ask makes one call for a rule of storePolicy.
func ask(t *testing.T, w *weir, rule string) (pipeline.Code, *rls.Answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := rls.Call(ctx, w.Addrs().TCP, request(rule+"=one"))
	if err != nil {
		t.Fatalf("the %s rule: %v", rule, err)
	}
	return answer.Code(), answer
}

func classesOf(t *testing.T, w *weir) map[string]uint64 {
	t.Helper()
	counts := map[string]uint64{}
	for _, class := range limit.Classes() {
		if n := w.counter(t, "weir_authority_errors_total", "class", class.String()); n > 0 {
			counts[class.String()] = n
		}
	}
	return counts
}

// webServer answers whatever comes as a web server would, and hangs up.
func webServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l.Addr().String()
}

// loadingRedis returns a server that reads its data again for longer than its test takes, since it waits at each key.
func loadingRedis(t *testing.T) *redistest.Server {
	t.Helper()
	redis := redistest.Start(t, redistest.WithArgs("--enable-debug-command", "local"))
	redis.MustDo(t, "DEBUG", "POPULATE", "20000")
	redis.MustDo(t, "CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
	redis.MustDo(t, "CONFIG", "SET", "key-load-delay", "5000") // µs
	conn, err := net.Dial("unix", redis.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := conn.Write([]byte("DEBUG RELOAD\r\n")); err != nil { // It is not answered before the end.
		t.Fatal(err)
	}
	err = parts.Poll(t.Context(), patience, func() error {
		_, err := redis.Do("GET", "x")
		if err == nil || !strings.HasPrefix(err.Error(), "LOADING") {
			return fmt.Errorf("the server says %w, want LOADING", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return redis
}
