package main

import (
	"context"
	"fmt"
	"time"

	"github.com/weir-rl/weir/pkg/sidecar"
)

type healthCmd struct {
	Addr    address       `default:"127.0.0.1:8081" placeholder:"${default}" help:"The service: host:port or unix:///path."`
	Service string        `help:"The gRPC service to ask for; all of the process when left out."`
	Timeout time.Duration `default:"1s" help:"The longest wait for the answer."`
	Wait    bool          `help:"Wait until the answer is SERVING, or the timeout ends."`
}

// Run prints the status; only SERVING is exit code 0.
func (c *healthCmd) Run(e *env) error {
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	if c.Wait {
		if err := sidecar.AwaitHealthy(ctx, string(c.Addr), c.Service); err != nil {
			if ctx.Err() != nil && e.ctx.Err() == nil {
				err = fmt.Errorf("not %s within %s: %w", sidecar.Healthy, c.Timeout, err)
			}
			return mendDial(err)
		}
		return e.say("%s", sidecar.Healthy)
	}
	status, err := sidecar.Health(ctx, string(c.Addr), c.Service)
	if err != nil {
		return mendDial(err)
	}
	if err := e.say("%s", status); err != nil {
		return err
	}
	if status != sidecar.Healthy {
		return exitCode(exitFailed)
	}
	return nil
}
