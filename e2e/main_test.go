package e2e

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Run(m, redistest.WithClock())
	if err := closeWorlds(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	// go-redis looks once a second whether a store is back, and notices only then that its pool was closed: longer
	// than goleak waits.
	err := goleak.Find(goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
