package authority

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/pkg/limit"
)

// TestHighestVersion: the store remembers the highest version of each
// namespace while somebody has it, and a week beyond.
func TestHighestVersion(t *testing.T) {
	server := redistest.Start(t)
	r, err := New(Config{URL: server.URL(), KeyPrefix: "p:"}, Deps{Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const key = "p:weir:1:version:prod"
	ttl := func() int64 {
		t.Helper()
		n, _ := server.MustDo(t, "TTL", key).(int64)
		return n
	}
	ask := func(namespace string, own, want uint64) {
		t.Helper()
		if got, err := r.HighestVersion(ctx, namespace, own); got != want || err != nil {
			t.Errorf("HighestVersion(%s, %d) = %d, %v, want %d", namespace, own, got, err, want)
		}
	}
	ask("prod", 0, 0)
	if n := server.MustDo(t, "EXISTS", key); n != int64(0) {
		t.Error("a set without a version was recorded")
	}
	ask("prod", 3, 3)
	if got := ttl(); got <= 0 || got > 7*86400 {
		t.Errorf("TTL %d s, want at most 7 days", got)
	}
	server.MustDo(t, "EXPIRE", key, "1000")
	ask("prod", 2, 3)
	ask("prod", 0, 3)
	if got := ttl(); got > 1000 {
		t.Errorf("TTL %d s: a lower version has renewed it", got)
	}
	ask("prod", 3, 3)
	if got := ttl(); got <= 1000 {
		t.Errorf("TTL %d s: the same version has not renewed it", got)
	}
	ask("prod", 7, 7)
	ask("test", 1, 1)

	for _, foreign := range [][]string{{"SET", key, "soon"}, {"SET", key, "-1"}, {"SET", key, "281474976710656"}, {"RPUSH", key, "9"}} {
		server.MustDo(t, "DEL", key)
		server.MustDo(t, foreign...)
		ask("prod", 0, 0)
		ask("prod", 5, 5)
		ask("prod", 4, 5)
	}
	ask("prod", limit.MaxVersion, limit.MaxVersion)

	server.Kill(t)
	if got, err := r.HighestVersion(ctx, "prod", 5); err == nil {
		t.Errorf("HighestVersion without a store = %d, want an error", got)
	}
}
