"""Operations on jobs: each is one write that also creates the resulting evaluation."""
