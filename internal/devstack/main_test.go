package devstack_test

import (
	"os"
	"testing"

	"github.com/pin-marketplace/vitrina/internal/devstack/devtest"
)

func TestMain(m *testing.M) { os.Exit(devtest.Main(m)) }
