"""Operations on jobs: each is one transaction that also creates the resulting evaluation."""
