package sidecar

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// retries are quick, since whoever waits for health has just started a
// sidecar on the same machine.
var retries = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: time.Second}

// Healthy is the status of a service that takes requests.
const Healthy = "SERVING"

// Health asks the service at target, which is host:port or unix:///path in
// plain text, for the gRPC health of one of its services, "" for all of it.
func Health(ctx context.Context, target, service string) (status string, err error) {
	err = withHealth(target, func(client healthpb.HealthClient) error {
		answer, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
		status = answer.GetStatus().String()
		return err
	})
	return status, err
}

// AwaitHealthy waits until the service can be reached and says that it is
// healthy, or ctx ends.
func AwaitHealthy(ctx context.Context, target, service string) error {
	return withHealth(target, func(client healthpb.HealthClient) error {
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		if err != nil {
			return err
		}
		last := ""
		for {
			report, err := stream.Recv()
			if err != nil && last != "" && ctx.Err() != nil {
				return errors.New("the last status was " + last)
			}
			if err != nil {
				return err
			}
			last = report.GetStatus().String()
			if report.GetStatus() == healthpb.HealthCheckResponse_SERVING {
				return nil
			}
		}
	})
}

func withHealth(target string, do func(healthpb.HealthClient) error) error {
	name := target
	if !strings.HasPrefix(target, "unix:") {
		name = "passthrough:///" + target
	}
	conn, err := grpc.NewClient(name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retries, MinConnectTimeout: time.Second}))
	if err != nil {
		return fmt.Errorf("health of %s: %w", target, err)
	}
	defer conn.Close() //nolint:errcheck // Nothing is left to be sent.
	if err := do(healthpb.NewHealthClient(conn)); err != nil {
		return fmt.Errorf("health of %s: %w", target, err)
	}
	return nil
}
