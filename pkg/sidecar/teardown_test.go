package sidecar

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTeardownTakesEveryStepLastFirstOnce(t *testing.T) {
	var taken []string
	bad, worse := errors.New("bad"), errors.New("worse")
	down := &teardown{log: slog.New(slog.DiscardHandler)}
	for _, s := range []struct {
		name string
		err  error
	}{{"store", worse}, {"service", nil}, {"drain", bad}} {
		down.push(s.name, func(context.Context) error {
			taken = append(taken, s.name)
			return s.err
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // a deadline that has passed spares no step
	err := down.run(ctx)
	if !errors.Is(err, bad) || !errors.Is(err, worse) {
		t.Errorf("run() = %v, want both errors", err)
	}
	if err := down.run(ctx); err != nil {
		t.Errorf("a second run() = %v, want nothing", err)
	}
	if diff := cmp.Diff([]string{"drain", "service", "store"}, taken); diff != "" {
		t.Error(diff)
	}
}
