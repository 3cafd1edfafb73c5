package sidecar

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// teardown is what must be undone, in the reverse of the order in which it
// was done. It belongs to one goroutine.
type teardown struct {
	log   *slog.Logger
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

func (t *teardown) push(name string, undo func(context.Context) error) {
	t.steps = append(t.steps, step{name, undo})
}

// run takes every step, last first, all under the deadline of ctx: a step that
// is late or fails does not spare the ones below it. It joins their errors,
// and a second run does nothing.
func (t *teardown) run(ctx context.Context) error {
	var errs []error
	for len(t.steps) > 0 {
		s := t.steps[len(t.steps)-1]
		t.steps = t.steps[:len(t.steps)-1]
		t.log.Debug("stopping", "step", s.name)
		if err := s.undo(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}
