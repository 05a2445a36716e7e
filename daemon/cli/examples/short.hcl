job "example" {
  type = "service"

  group "hello" {
    count = 1

    task "greeter" {
      driver = "raw_exec"

      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do echo \"$GREETING from $NOMAD_ALLOC_NAME\"; sleep 1; done"]
      }

      env {
        GREETING = "hello"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
