package authority

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/weir-rl/weir/internal/redistest"
)

func TestMain(m *testing.M) {
	code := redistest.Run(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
