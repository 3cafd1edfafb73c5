package authority

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Run(m)
	err := goleak.Find()
	// go-redis looks once a second whether a store that refused connections is
	// back, and then whether its client was closed.
	for deadline := time.Now().Add(5 * time.Second); err != nil && time.Now().Before(deadline); {
		err = goleak.Find()
	}
	if code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
